"""A Buffer's life: starts that fail leave nothing behind and say the same everywhere; ends in any order, any often."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.uccl_ep.holdings import Holdings
from tests.uccl_ep.ranks import MIB, case, low_latency, throughput
from uccl_ep import (
    Buffer,
    InvalidArgument,
    PeerLost,
    SettingsMismatch,
    ThreadGroup,
    TransportError,
    UcclEpError,
    run_ranks,
)
from uccl_ep.fabric.choice import FabricChoice
from uccl_ep.fabric.config import FabricConfig
from uccl_ep.layout import arrangement
from uccl_ep.membership.agreement_service import AgreementService
from uccl_ep.recorder.recorder import FlightRecorder
from uccl_ep.session import session
from uccl_ep.session.session import Session
from uccl_ep.settings import settings


def warm_up() -> None:
    """What a process opens once and keeps: the first Buffer's random source, torch's threads."""
    run_ranks(2, lambda group: Buffer(group, MIB).destroy())


WORLDS = [("thread", "auto", 0), ("thread", "loopback", 1), ("thread", "tcp", 1), ("thread", "shared_memory", 1)]
SLOWER = [pytest.param(*world, marks=pytest.mark.slow) for world in (WORLDS[0], *WORLDS[2:4])]


@pytest.mark.mostly_slow
@pytest.mark.parametrize("proxy, transport, per_node", [WORLDS[1], *SLOWER, ("process", "tcp", 1)])
def test_session_destroy_gives_everything_back(variables: Any, proxy: str, transport: str, per_node: int) -> None:
    variables(PROXY=proxy, TRANSPORT=transport, RANKS_PER_NODE=per_node)
    warm_up()
    before = Holdings()
    c = case(3, num_ranks=3, num_experts=6, hidden=128)
    kept: list[Buffer] = []

    def body(group: ThreadGroup) -> None:
        with low_latency(group, c.shape) as buffer:
            kept.append(buffer)  # a destroyed Buffer holds nothing, even while the object lives
            rank = group.rank()
            buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], c.shape.max_tokens, c.shape.num_experts)
            buffer.barrier()

    run_ranks(3, body)
    assert all(buffer.runtime is None for buffer in kept)
    # Streams are threads, and go with the Buffer; memory, descriptors and proxies must be gone already.
    now = Holdings()
    assert (now.process.segments, now.process.children) == (before.process.segments, before.process.children)
    assert now.shm == before.shm
    kept.clear()
    before.assert_gone_back()


@pytest.mark.slow
@pytest.mark.parametrize("transport, per_node", [("auto", 0), ("tcp", 1)])
def test_session_fifty_buffers_one_after_the_other(variables: Any, transport: str, per_node: int) -> None:
    variables(TRANSPORT=transport, RANKS_PER_NODE=per_node)
    warm_up()
    before = Holdings()
    c = case(4, num_ranks=2, hidden=128)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        for turn in range(50):
            with low_latency(group, c.shape) as buffer:
                if turn % 10 == 0:
                    buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], c.shape.max_tokens, c.shape.num_experts)

    run_ranks(2, body)
    before.assert_gone_back()


def test_session_views_outlive_the_buffer(variables: Any) -> None:
    def body(group: ThreadGroup) -> torch.Tensor:
        with throughput(group) as buffer:
            view = buffer.get_local_buffer_tensor(torch.int32, torch.Size([16]))
            view.fill_(group.rank() + 7)
            return view

    for rank, view in enumerate(run_ranks(2, body)):
        assert view.tolist() == [rank + 7] * 16


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
@pytest.mark.parametrize("transport, per_node", [("auto", 0), ("loopback", 2), ("tcp", 1)])
def test_session_ranks_leave_in_any_order_and_nobody_complains(
    variables: Any, order: tuple[int, ...], transport: str, per_node: int
) -> None:
    variables(TRANSPORT=transport, RANKS_PER_NODE=per_node)

    def body(group: ThreadGroup) -> None:
        buffer = Buffer(group, MIB)
        buffer.barrier()
        for leaver in order:
            if leaver == group.rank():
                buffer.destroy()
                buffer.destroy()  # again: nothing
            group.barrier()
            if buffer.runtime is not None:
                time.sleep(0.01)
                buffer.stats()
                buffer._session.check()  # the others' goodbye is no fault

    run_ranks(3, body)


def test_session_after_destroy_every_call_is_refused(variables: Any) -> None:
    def body(group: ThreadGroup) -> None:
        with low_latency(group, case(1, num_ranks=1).shape, enable_shrink=True) as buffer:
            ids = torch.zeros(1, 1, dtype=torch.int64)
            *_, event = buffer.get_dispatch_layout(ids, 8, async_finish=True)
        x = torch.zeros(1, 256, dtype=torch.bfloat16)
        calls: list[Callable[[], object]] = [
            buffer.barrier, buffer.stats, buffer.memory_bill, buffer.low_latency_clean_mask_buffer,
            lambda: buffer.get_local_buffer_tensor(torch.int8),
            lambda: buffer.get_dispatch_layout(ids, 8),
            lambda: buffer.dispatch(x, handle=(1,)),
            lambda: buffer.combine(x, (1,)),
            lambda: buffer.low_latency_dispatch(x, ids, 16, 8),
            lambda: buffer.clean_low_latency_buffer(16, 256, 8),
            lambda: buffer.low_latency_update_mask_buffer(0, True),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(InvalidArgument, match="this Buffer has been destroyed"):
                call()
        event.current_stream_wait()  # what it was for has ended before the Buffer did

    run_ranks(1, body)


def broken_on(rank: int, method: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a step of Session's start fail on one rank."""
    original = getattr(Session, method)

    def step(self: Session, *args: Any, **kwargs: Any) -> Any:
        if self.rank == rank:
            raise error
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Session, method, step)


STEPS = ["_make_segments", "_make_proxy", "_endpoints", "_make_context"]
STARTS = [
    pytest.param(
        proxy, step, marks=[pytest.mark.slow] * ((proxy, step) not in {("thread", STEPS[0]), ("process", STEPS[3])})
    )
    for proxy, step in [*(("thread", step) for step in STEPS), ("process", "_endpoints"), ("process", "_make_context")]
]


@pytest.mark.mostly_slow
@pytest.mark.parametrize("proxy, step", STARTS)
def test_session_one_rank_that_cannot_start_is_named_on_every_rank(
    variables: Any, monkeypatch: pytest.MonkeyPatch, step: str, proxy: str
) -> None:
    variables(PROXY=proxy, TRANSPORT="tcp", RANKS_PER_NODE=1)
    warm_up()
    before = Holdings()
    broken_on(1, step, OSError(28, "no space left"), monkeypatch)

    def body(group: ThreadGroup) -> str:
        with pytest.raises(UcclEpError) as caught:
            Buffer(group, MIB)
        return str(caught.value)

    assert set(run_ranks(3, body)) == {"rank 1: OSError: [Errno 28] no space left"}
    monkeypatch.undo()
    before.assert_gone_back()


def test_session_two_ranks_that_cannot_start_are_both_named(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_on(0, "_make_segments", MemoryError("first"), monkeypatch)
    broken_on(2, "_make_segments", OSError("third"), monkeypatch)

    def body(group: ThreadGroup) -> str:
        with pytest.raises(UcclEpError) as caught:
            Buffer(group, MIB)
        return str(caught.value)

    assert set(run_ranks(3, body)) == {"rank 0: MemoryError: first; rank 2: OSError: third"}


def test_session_settings_must_agree(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments, and variables that processes may have differently."""
    variables(RINGS=4)
    environments = [settings(), settings()]
    variables(RINGS=2, PROXY_THREADS=3)
    environments.append(settings())

    def body(group: ThreadGroup) -> str:
        environment = environments[group.rank()]
        with pytest.raises(SettingsMismatch) as caught:
            Session(group, (MIB, 128 * group.rank()), False, False, environment)
        return str(caught.value)

    texts = set(run_ranks(3, body))
    assert len(texts) == 1
    text = texts.pop()
    host = os.uname().nodename
    for name, values in (
        ("num_rdma_bytes", (0, 128, 256)), ("UCCL_EP_RINGS", (4, 4, 2)), ("UCCL_EP_PROXY_THREADS", (1, 1, 3)),
    ):  # fmt: skip
        shown = ", ".join(f"rank {r} ({host}): {v!r}" for r, v in enumerate(values))
        assert f"{name} differs: {shown}" in text
    assert "num_nvl_bytes" not in text


@pytest.mark.parametrize("name, value", [("low_latency_mode", True), ("enable_shrink", True), ("num_nvl_bytes", 256)])
def test_session_arguments_that_differ_are_named(variables: Any, name: str, value: Any) -> None:
    def body(group: ThreadGroup) -> None:
        arguments: dict[str, Any] = {"num_nvl_bytes": 128, "num_rdma_bytes": MIB}
        if group.rank() == 1:
            arguments[name] = value
        with pytest.raises(SettingsMismatch, match=rf"{name} differs: rank 0 .*: .*, rank 1 .*: {value!r}"):
            Buffer(group, **arguments)

    run_ranks(2, body)


def test_session_process_proxy_excludes_loopback(variables: Any) -> None:
    variables(PROXY="process", TRANSPORT="loopback", RANKS_PER_NODE=1)

    def body(group: ThreadGroup) -> None:
        with pytest.raises(UcclEpError, match="UCCL_EP_PROXY=process and UCCL_EP_TRANSPORT=loopback exclude"):
            Buffer(group, MIB)

    run_ranks(2, body)


@pytest.mark.parametrize("proxy", ["thread", "process"])
def test_session_keeps_and_prints_what_was_chosen(
    variables: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], proxy: str
) -> None:
    """Of NICs before the start, of the transport after it; what is handed on reaches the proxy, wherever it runs."""
    variables(PROXY=proxy, TRANSPORT="tcp", RANKS_PER_NODE=1, EXPLAIN=1)
    chosen = FabricChoice("tcp", "a test", FabricConfig((("rxe0", 1, 3),), queue_pairs=2), (("a NIC", "it is near"),))
    monkeypatch.setattr(arrangement, "choose_fabric", lambda *arguments: chosen)
    monkeypatch.setattr(session.ThreadProxy, "notes", lambda self: [("queue pairs", "two")])
    monkeypatch.setattr(session.ProcessProxy, "notes", lambda self: [("queue pairs", "two")])

    def body(group: ThreadGroup) -> list[tuple[str, str]]:
        buffer = Buffer(group, MIB)
        notes = [note for note in buffer._session.notes if not note[0].startswith("a proxy thread")]
        buffer.destroy()
        return notes

    assert run_ranks(2, body) == [[("a NIC", "it is near"), ("queue pairs", "two")]] * 2
    said = capfd.readouterr().err
    for line in ("transport tcp: a test", "a NIC: it is near", "queue pairs: two"):
        assert said.count(f"uccl-ep: {line}\n") == 1  # by one rank


def test_session_what_one_rank_cannot_use_is_told_to_all(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    of = {1: InvalidArgument("no address that peers reach")}
    monkeypatch.setattr(arrangement, "choose_fabric", lambda *a: FabricChoice("tcp", "a test", problem=of.get(a[-1])))

    def body(group: ThreadGroup) -> str:
        with pytest.raises(UcclEpError) as caught:
            Buffer(group, MIB)
        return str(caught.value)

    assert set(run_ranks(3, body)) == {"rank 1: InvalidArgument: no address that peers reach"}


def test_session_facts_that_cannot_be_gathered_are_told_to_all(variables: Any) -> None:
    variables(NICS="no_such_nic")

    def body(group: ThreadGroup) -> str:
        with pytest.raises(UcclEpError) as caught:
            Buffer(group, MIB)
        return str(caught.value)

    one, other = run_ranks(2, body)
    assert one == other and one.count("UCCL_EP_NICS must be a NIC of this host: none at all; got 'no_such_nic'.") == 2


@pytest.mark.parametrize(
    "family, provider, reserved",
    [
        ("tcp", "", 1 << 35),
        ("verbs", "", 1 << 35),
        ("efa", "", 1 << 35),
        ("libfabric", "cxi", MIB),
        ("libfabric", "shm", 1 << 35),
    ],
)
def test_session_a_nic_registers_no_more_than_the_rows_take(
    variables: Any, monkeypatch: pytest.MonkeyPatch, family: str, provider: str, reserved: int
) -> None:
    """libfabric's takes every page at once; memfds take one when it is written, verbs and efa when it is asked for."""
    chosen = FabricChoice(family, "a test", FabricConfig(provider=provider))
    monkeypatch.setattr(arrangement, "choose_fabric", lambda *arguments: chosen)
    plans = []
    monkeypatch.setattr(Session, "_connect", lambda self, *arguments: plans.append(self.plan))
    run_ranks(1, lambda group: Session(group, (0, MIB), True, False, settings()).close())
    assert plans[0].zero_copy_bytes == reserved
    in_total = [item for item in plans[0].bill().items if item.name == "zero-copy rows" and not item.reserved]
    assert len(in_total) == (reserved == MIB) and plans[0].zero_copy_late == (family in ("verbs", "efa"))


def test_session_start_that_is_interrupted_leaves_nothing(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    warm_up()
    before = Holdings()
    broken_on(0, "_make_context", KeyboardInterrupt(), monkeypatch)  # type: ignore[arg-type]

    def body(group: ThreadGroup) -> None:
        Buffer(group, MIB)

    with pytest.raises((KeyboardInterrupt, threading.BrokenBarrierError)) as caught:
        run_ranks(2, body)
    del caught
    monkeypatch.undo()
    before.assert_gone_back()


def test_session_connection_failure_is_told_to_all(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    variables(TRANSPORT="tcp", RANKS_PER_NODE=1)

    class Unreachable(session.ThreadProxy):
        def connect(self, *args: Any) -> None:
            raise TransportError("tcp: rank 1 at 203.0.113.1: no route")

    monkeypatch.setattr(session, "ThreadProxy", Unreachable)

    def body(group: ThreadGroup) -> str:
        with pytest.raises(UcclEpError) as caught:
            Buffer(group, MIB)
        return str(caught.value)

    texts = set(run_ranks(2, body))
    reason = "TransportError: tcp: rank 1 at 203.0.113.1: no route"
    assert texts == {f"rank 0: {reason}; rank 1: {reason}"}


def test_session_loss_at_start_up_comes_with_why_the_others_failed() -> None:
    """The group itself broke; ranks that had already failed have told the rest over the agreement service."""
    one: Any = Session.__new__(Session)
    loss = PeerLost(rank=0, phase="start-up, exchange of Ready (closed by peer 1)")
    one.rank, one.agreement_service = 0, None
    assert one._with_others_words(loss) is loss
    calls = [AgreementService(rank, 3, b"s" * 32, "127.0.0.1") for rank in range(3)]
    try:
        for call in calls:
            call.meet({other.rank: other.address for other in calls})
        one.agreement_service = calls[0]
        calls[1].report_wait(-1, "could not connect to rank(s) 2")
        error = one._with_others_words(loss)
        assert error.phase == f"{loss.phase}; rank 1 had said: could not connect to rank(s) 2"
        assert "could not connect to rank(s) 2" in str(error)
    finally:
        for call in calls:
            call.close()


def test_session_groups_out_of_range(variables: Any) -> None:
    class Huge:
        def rank(self) -> int:
            return 0

        def size(self) -> int:
            return 4097

        def all_gather_object(self, value: Any) -> list[Any]:
            raise AssertionError("asked before it was checked")

    with pytest.raises(InvalidArgument, match="group must be of 1 to 4096 ranks; got 4097."):
        Buffer(Huge(), MIB)


def test_session_wakes_the_proxy_before_each_kernel() -> None:
    words = torch.zeros(64, dtype=torch.int32)  # as many as a control segment has before its tables
    one: Any = Session.__new__(Session)
    one.recorder = FlightRecorder(0, settings())
    one.regions = SimpleNamespace(control=SimpleNamespace(address=words.data_ptr()))
    for times in (1, 2):
        one.note("throughput_dispatch")
        assert one.last_kernel == "throughput_dispatch"
        assert sorted(words.tolist())[-2:] == [0, times]
    one.keep_awake()
    assert sorted(words.tolist())[-3:] == [0, 1, 2]
