"""Buffer.pause and resume: rows' memory goes and comes, every result is the same to the bit, and who may do what
meanwhile; ranks are threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.end_to_end.play import make_buffer, playing
from tests.end_to_end.steps import LowLatencyStep, Step, ThroughputStep
from tests.uccl_ep.ranks import layout_arguments
from uccl_ep import Buffer, InvalidArgument, PeerLost, PeerTimeout, ThreadGroup, run_ranks
from uccl_ep.fabric.choice import FabricChoice
from uccl_ep.survival.sleep import SleepReport

ROUNDS, NAPS = 2, 9
M, H, EXPERTS = 8, 256, 4
SLEEPS = r"this Buffer sleeps: pause\(\) gave its memory back"
WORLDS = [
    pytest.param(2, {}, id="one node"),
    pytest.param(2, {"RANKS_PER_NODE": 1, "TRANSPORT": "tcp"}, id="a node each, tcp"),
    pytest.param(4, {"RANKS_PER_NODE": 2, "TRANSPORT": "loopback", "SHUFFLE_SEED": 7}, id="two nodes, loopback"),
    pytest.param(2, {"RANKS_PER_NODE": 1, "TRANSPORT": "tcp", "PROXY": "process"}, id="a node each, proxy processes"),
    pytest.param(3, {"RANKS_PER_NODE": 2}, id="two nodes, shared memory"),
]


def steps(number: int) -> list[Step]:
    """One of each kind, with other rows for every number."""
    return [
        LowLatencyStep(number, M, H, topk=3, format="fp8"),
        ThroughputStep(100 + number, max_tokens=400, hidden=1024, topk=3, num_cached=1),
        LowLatencyStep(200 + number, M, H, topk=3, combine="zero_copy"),
        ThroughputStep(300 + number, max_tokens=16, hidden=256, topk=3, use_async=True),
    ]


def play(buffer: Buffer, one: Step, per_node: int, between: Callable[[], None] = lambda: None) -> None:
    """A step, row by row; `between` runs after its dispatch, after each cached one and after its combine."""
    for done in playing(buffer, one, per_node or None):
        if done == "receive":
            between()


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, topk_idx and topk_weights of a small call."""
    return torch.ones(4, H).bfloat16(), torch.arange(8).view(4, 2) % EXPERTS, torch.ones(4, 2)


@pytest.mark.mostly_slow(quick=2)
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("ranks", "world"), WORLDS)
def test_sleep_between_any_two_calls_changes_no_row(variables: Any, ranks: int, world: dict[str, Any]) -> None:
    variables(**world)
    per_node = int(world.get("RANKS_PER_NODE", 0))
    reports: list[SleepReport] = []

    def body(group: ThreadGroup) -> None:
        buffer = make_buffer(group, steps(0), per_node, slack=6)

        def nap() -> None:
            report = buffer.pause()
            reports.append(report)
            assert report.after["rows"] <= buffer._session.plan.throughput.base and report.after["zero-copy rows"] == 0
            assert sum(report.after.values()) == sum(buffer.resume().before.values())

        address = buffer.get_local_buffer_tensor(torch.uint8).data_ptr()
        for number in range(ROUNDS):
            for one in steps(number):
                play(buffer, one, per_node, nap)
            for one in steps(50 + number):  # and awake
                play(buffer, one, per_node)
        assert buffer.get_local_buffer_tensor(torch.uint8).data_ptr() == address
        buffer.barrier()
        buffer.destroy()

    run_ranks(ranks, body)
    assert len(reports) == ranks * ROUNDS * NAPS and all(r.kept == {} for r in reports)
    assert min(r.freed_bytes for r in reports) >= 0 and max(r.freed_bytes for r in reports) > 100_000


def test_sleep_gives_back_all_rows_and_free_results(variables: Any) -> None:
    def body(group: ThreadGroup) -> None:
        buffer = Buffer(group, 4 << 20, Buffer.get_low_latency_rdma_size_hint(M, H, 2, EXPERTS), low_latency_mode=True)
        plan = buffer._session.plan
        buffer.get_local_buffer_tensor(torch.uint8).fill_(1)
        buffer.get_local_buffer_tensor(torch.uint8, use_rdma_buffer=True).fill_(1)
        result, dropped = buffer.empty_rows(1 << 10, 1 << 10), buffer.empty_rows(1 << 11, 1 << 10)
        result.fill_(2.0)
        dropped.fill_(2.0)
        del dropped
        report = buffer.pause()
        assert report.before["rows"] >= plan.data_bytes - plan.throughput.base > report.after["rows"]
        assert report.after["rows"] <= plan.throughput.base
        assert report.before["results"] - report.after["results"] >= 4 << 20 > report.after["results"] >= result.nbytes
        assert report.before["control"] == report.after["control"] > 0 < report.seconds
        assert report.freed_bytes == sum(report.before.values()) - sum(report.after.values())
        assert bool((result == 2.0).all())
        buffer.resume()
        assert not buffer.get_local_buffer_tensor(torch.uint8).any()  # as a new Buffer's
        lines = str(report).splitlines()
        assert lines[0].split()[:2] == ["before", "after"] and lines[-1].endswith("total")
        assert [line.split("  ")[-1] for line in lines[1:-1]] == ["rows", "zero-copy rows", "results", "control"]
        buffer.barrier()
        buffer.destroy()

    run_ranks(2, body)


def test_sleep_says_what_stays_and_why(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    variables(RANKS_PER_NODE=1, TRANSPORT="tcp")

    def body(group: ThreadGroup) -> None:
        buffer = make_buffer(group, steps(0), 1, slack=6)
        for one in steps(0):
            play(buffer, one, 1)
        report = buffer.pause()
        assert set(report.kept) == {"rows", "zero-copy rows"} and report.freed_bytes == 0
        assert "rows             a NIC has registered every page (tcp)" in str(report)
        buffer.resume()
        for one in steps(1):
            play(buffer, one, 1)
        buffer.barrier()
        buffer.destroy()

    monkeypatch.setattr(FabricChoice, "pins_memory", True)
    run_ranks(2, body)


def test_sleep_refuses_calls_until_it_ends(variables: Any, tmp_path: Path) -> None:
    def body(group: ThreadGroup) -> None:
        x, ids, weights = inputs()
        buffer = make_buffer(group, steps(0), 0, slack=6)
        with pytest.raises(InvalidArgument, match=r"resume\(\) is refused: this Buffer does not sleep"):
            buffer.resume()
        layout = layout_arguments(buffer, ids, EXPERTS)
        rows, _, _, _, handle, _ = buffer.dispatch(x, topk_idx=ids, topk_weights=weights, **layout)
        packed, _, made, _, hook = buffer.low_latency_dispatch(x, ids, M, EXPERTS, use_fp8=False, return_recv_hook=True)
        with pytest.raises(InvalidArgument, match="before the receive hook of low_latency_dispatch number 1 has run"):
            buffer.pause()
        assert hook is not None
        hook()
        buffer.get_next_low_latency_combine_buffer(made).copy_(packed)
        bill = str(buffer.memory_bill())
        buffer.pause()
        for call in (
            buffer.barrier,
            buffer.pause,
            hook,
            lambda: buffer.get_dispatch_layout(ids, EXPERTS),
            lambda: buffer.dispatch(x, handle=handle),
            lambda: buffer.combine(rows, handle),
            lambda: buffer.low_latency_dispatch(x, ids, M, EXPERTS),
            lambda: buffer.low_latency_combine(packed, ids, weights, made),
            lambda: buffer.get_next_low_latency_combine_buffer(made),
            lambda: buffer.clean_low_latency_buffer(M, H, EXPERTS),
            lambda: buffer.get_local_buffer_tensor(torch.uint8),
            lambda: buffer.empty_rows(1, 1),
            lambda: buffer.set_call_tag(1),
        ):
            with pytest.raises(InvalidArgument, match=SLEEPS):
                call()
        assert buffer.members() == [0, 1] and str(buffer.memory_bill()) == bill
        assert buffer.stats()["rank"] == buffer.rank
        assert Path(buffer.dump_flight_record(str(tmp_path))).is_file()
        buffer.resume()
        with pytest.raises(InvalidArgument, match=r"zero_copy=True is refused: pause\(\) gave back"):
            buffer.low_latency_combine(packed, ids, weights, made, zero_copy=True)
        buffer.get_next_low_latency_combine_buffer(made).copy_(packed)
        out, _, _ = buffer.low_latency_combine(packed, ids, weights, made, zero_copy=True)
        assert torch.equal(out, x * 2)
        buffer.barrier()
        buffer.pause()
        buffer.destroy()  # asleep

    run_ranks(2, body)


def test_sleep_notices_who_has_gone_meanwhile(variables: Any) -> None:
    gone = threading.Event()

    def body(group: ThreadGroup) -> None:
        buffer = make_buffer(group, steps(0), 0, slack=6)
        play(buffer, steps(0)[1], 0)
        buffer.pause()
        if group.rank() == 1:
            buffer.destroy()
            gone.set()
            return
        assert gone.wait(20)
        with pytest.raises(PeerLost) as caught:
            buffer.resume()
        assert caught.value.peer == 1
        with pytest.raises(InvalidArgument, match=SLEEPS):
            buffer.barrier()
        assert buffer.recover() == [0, 2]  # awake
        buffer.barrier()
        buffer.pause()
        buffer.resume()
        buffer.destroy()

    run_ranks(3, body)


def test_sleep_leaves_a_masked_rank_out(variables: Any) -> None:
    variables(RANKS_PER_NODE=1, TRANSPORT="tcp")

    def body(group: ThreadGroup) -> None:
        one = LowLatencyStep(1, M, H, topk=3, masked=(1,))
        buffer = make_buffer(group, [one], 1, slack=6)
        if group.rank() == 1:
            group.barrier()
            buffer.destroy()
            return
        buffer.low_latency_update_mask_buffer(1, True)
        group.barrier()
        for number in range(3):
            again = LowLatencyStep(number, M, H, topk=3, masked=(1,))
            play(buffer, again, 1, lambda: [buffer.pause(), buffer.resume()] and None)
        buffer.barrier()
        buffer.destroy()

    run_ranks(3, body)


def test_sleep_is_awake_where_a_rank_does_not_come(variables: Any) -> None:
    variables(TIMEOUT_S=0.3)
    done = threading.Event()

    def body(group: ThreadGroup) -> None:
        buffer = make_buffer(group, steps(0)[:1], 0)
        if group.rank() == 0:
            for call in (buffer.pause, buffer.barrier):
                with pytest.raises(PeerTimeout):
                    call()
            done.set()
        assert done.wait(20)
        buffer.destroy()

    run_ranks(2, body)
