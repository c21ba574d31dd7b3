"""Calls of Buffer on the fake GPU: rows equal to the reference in both modes, streams, hooks, events, faults, masks."""

from __future__ import annotations

import time
import warnings
from typing import Any

import pytest
import torch

from tests.uccl_ep.gate import Gate
from tests.uccl_ep.gpu.fake_driver import FakeDriver
from tests.uccl_ep.gpu.worlds import install, run_gpu_ranks
from tests.uccl_ep.ranks import (
    MIB,
    assert_low_latency,
    case,
    expert_rows,
    layout_arguments,
    low_latency,
    reference_of,
    same,
    throughput,
)
from uccl_ep import Buffer, EventHandle, EventOverlap, InvalidArgument, PeerLost, PeerTimeout, ThreadGroup, reference
from uccl_ep.low_latency import overlap
from uccl_ep.reference import Fp8Format, RandomCase, ThroughputInput

WORLDS = [
    pytest.param(1, 0, "auto", id="one rank"),
    pytest.param(4, 0, "auto", id="one node of 4"),
    pytest.param(4, 2, "loopback", id="2 nodes of 2, loopback"),
    pytest.param(5, 3, "tcp", id="nodes of 3 and 2, tcp"),
    pytest.param(8, 5, "loopback", id="nodes of 5 and 3, loopback"),
    pytest.param(8, 2, "shared_memory", id="4 nodes of 2, shared memory"),
]
FORMATS: list[tuple[dict[str, bool], Fp8Format | None]] = [
    ({"use_fp8": False}, None),
    ({}, Fp8Format()),
    ({"round_scale": True, "use_ue8m0": True}, Fp8Format(True, True)),
]


def combined_of(cases: list[RandomCase]) -> list[list[torch.Tensor]]:
    return [
        reference.low_latency_combine(
            [expert_rows(r, c.shape) for r in range(c.shape.num_ranks)], c.topk_idx, c.topk_weights, reference_of(c)
        )
        for c in cases
    ]


@pytest.mark.parametrize("ranks, per_node, transport", WORLDS)
def test_gpu_calls_low_latency_rows_are_the_references(
    variables: Any, monkeypatch: pytest.MonkeyPatch, ranks: int, per_node: int, transport: str
) -> None:
    variables(RANKS_PER_NODE=per_node, TRANSPORT=transport, SHUFFLE_SEED=5)
    driver = install(monkeypatch, FakeDriver(num_sms=4 * ranks))
    traffic = ["mixed", "no_tokens", "duplicates", "all_unused", "hot_expert", "uniform"]
    cases = [
        case(60 + turn, kind, num_ranks=ranks, num_experts=2 * ranks, num_topk=2, hidden=512, max_tokens=12)
        for turn, kind in enumerate(traffic)
    ]
    wanted = [reference_of(c, fp8=FORMATS[turn % 3][1]) for turn, c in enumerate(cases)]
    sums = combined_of(cases)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        with low_latency(group, cases[0].shape) as buffer:
            assert buffer._session.placement.where == ("device" if ranks == 1 or per_node == 0 else "host")
            for turn, c in enumerate(cases):
                got = buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], 12, 2 * ranks, **FORMATS[turn % 3][0])
                rows = expert_rows(rank, c.shape)
                out, _, _ = buffer.low_latency_combine(rows, c.topk_idx[rank], c.topk_weights[rank], got[2])
                driver.settle()
                assert_low_latency(got[:3], wanted[turn][rank])
                assert same(out, sums[turn][rank])

    run_gpu_ranks(driver, ranks, body)
    assert driver.held() == {"allocated": 0, "opened": 0, "pinned": 0}


def inputs_of(c: RandomCase, per_node: int) -> list[ThroughputInput]:
    layouts = [reference.dispatch_layout(ids, c.shape.num_experts, c.shape.num_ranks, per_node or None)
               for ids in c.topk_idx]  # fmt: skip
    return [
        ThroughputInput(c.x[r], layouts[r].is_token_in_rank, c.topk_idx[r], c.topk_weights[r], None)
        for r in range(c.shape.num_ranks)
    ]


@pytest.mark.parametrize("ranks, per_node, transport", WORLDS)
def test_gpu_calls_throughput_rows_are_the_references(
    variables: Any, monkeypatch: pytest.MonkeyPatch, ranks: int, per_node: int, transport: str
) -> None:
    variables(RANKS_PER_NODE=per_node, TRANSPORT=transport, SHUFFLE_SEED=6)
    driver = install(monkeypatch, FakeDriver(num_sms=6 * ranks))
    traffic = ["mixed", "no_tokens", "uniform", "duplicates", "hot_expert"]
    cases = [
        case(80 + turn, kind, num_ranks=ranks, num_experts=2 * ranks, num_topk=2, hidden=128, max_tokens=20)
        for turn, kind in enumerate(traffic)
    ]
    worst = [0, 0, 20 * ranks, 0, 20 * ranks]
    wanted = [reference.throughput_dispatch(inputs_of(c, per_node), 2 * ranks, 1, w)
              for c, w in zip(cases, worst, strict=True)]  # fmt: skip
    sums = [
        reference.throughput_combine([w.recv_x for w in want], want, [w.recv_topk_weights for w in want],
                                     None, per_node or None)
        for want in wanted
    ]  # fmt: skip

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        with throughput(group) as buffer:
            for turn, c in enumerate(cases):
                layout = layout_arguments(buffer, c.topk_idx[rank], 2 * ranks)
                event = buffer.capture()
                x, ids, weights, counts, handle, done = buffer.dispatch(
                    c.x[rank], **layout, topk_idx=c.topk_idx[rank], topk_weights=c.topk_weights[rank],
                    num_worst_tokens=worst[turn], previous_event=event if turn % 2 else None,
                    async_finish=turn % 2 == 1, allocate_on_comm_stream=turn == 3,
                )  # fmt: skip
                again, *_, later = buffer.dispatch(c.x[rank], handle=handle, async_finish=turn == 2)
                if done.event is not None:
                    done.current_stream_wait()
                if later.event is not None:
                    later.current_stream_wait()
                want = wanted[turn][rank]
                driver.settle()
                n = want.num_rows
                assert same(x[:n], want.recv_x[:n]) and same(again[:n], want.recv_x[:n])
                assert same(ids, want.recv_topk_idx) and same(weights[:n], want.recv_topk_weights[:n])
                assert counts == ([] if worst[turn] else want.num_recv_tokens_per_expert_list)
                out, out_weights, _ = buffer.combine(want.recv_x, handle, topk_weights=want.recv_topk_weights)
                driver.settle()
                assert same(out, sums[turn][0][rank]) and same(out_weights, sums[turn][1][rank])

    run_gpu_ranks(driver, ranks, body)
    assert driver.held() == {"allocated": 0, "opened": 0, "pinned": 0}


def test_gpu_calls_hook_leaves_the_gpu_free_between_the_halves(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = install(monkeypatch, FakeDriver())
    c = case(90, "uniform", num_ranks=2, num_experts=4, hidden=128, max_tokens=8)
    wanted = reference_of(c)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        with low_latency(group, c.shape) as buffer:
            mine, comm = driver.current_stream(), buffer.get_comm_stream()
            sent = [
                buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], 8, 4, use_fp8=False, return_recv_hook=True)
                for _ in range(2)  # two micro-batches
            ]
            assert comm.launched == [] and mine.launched == ["low_latency_dispatch_send"] * 2
            driver.settle()  # nothing of the sending halves is left, without any rank having received
            group.barrier()
            other = driver.new_stream()
            with driver.on(other):  # another stream than the sending half's
                sent[1][4]()
                driver.settle()
            sent[0][4]()
            sent[0][4]()  # again: nothing
            driver.settle()
            assert comm.launched == [] and other.launched == ["low_latency_dispatch_recv"]
            assert mine.launched[2:] == ["low_latency_dispatch_recv"]
            for got in sent:
                assert_low_latency(got[:3], wanted[rank])
                assert got[3].event is None

    run_gpu_ranks(driver, 2, body)


def test_gpu_calls_calls_do_not_block_the_host_and_order_the_callers_stream(
    variables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = install(monkeypatch, FakeDriver())
    c = case(91, "uniform", num_ranks=2, num_experts=4, hidden=128, max_tokens=8)
    wanted = reference_of(c)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        with low_latency(group, c.shape) as buffer:
            gate = Gate(buffer._device) if rank == 1 else None  # its kernels come late
            got = buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], 8, 4, use_fp8=False)
            rows = expert_rows(rank, c.shape)
            out, event, _ = buffer.low_latency_combine(
                rows, c.topk_idx[rank], c.topk_weights[rank], got[2], async_finish=True
            )
            behind = driver.record(driver.current_stream())
            time.sleep(0.05)
            assert not event.event.query() and not driver.query(behind)  # the caller's stream waits, the caller not
            group.barrier()
            if gate is not None:
                gate.open()
            with event:
                pass
            driver.settle()
            assert event.event.query()
            assert_low_latency(got[:3], wanted[rank])

    run_gpu_ranks(driver, 2, body)


def test_gpu_calls_async_results_are_kept_for_the_streams_that_use_them(
    variables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = install(monkeypatch, FakeDriver())
    ids = torch.randint(0, 4, (6, 2))

    def body(group: ThreadGroup) -> None:
        with throughput(group) as buffer:
            comm, mine = buffer.get_comm_stream().key, driver.current_stream().key
            driver.used.clear()
            *_, event = buffer.get_dispatch_layout(ids, 4, async_finish=True)
            assert (ids.data_ptr(), comm) in driver.used and {key for _, key in driver.used} == {comm}
            driver.used.clear()
            results = buffer.get_dispatch_layout(ids, 4, previous_event=event)
            assert (results[0].data_ptr(), mine) in driver.used  # its memory is the comm stream's

    run_gpu_ranks(driver, 1, body)


def test_gpu_calls_two_ranks_on_one_stream_are_refused(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = install(monkeypatch, FakeDriver())

    def body(group: ThreadGroup) -> str:
        buffer = Buffer(group, MIB)  # no stream of its own: the default stream
        text = ""
        try:
            if group.rank() == 1:
                group.barrier()
            buffer.get_dispatch_layout(torch.zeros(1, 1, dtype=torch.int64), 2)
            driver.settle()
        except InvalidArgument as error:
            text = str(error)
        if group.rank() == 0:
            group.barrier()
        group.barrier()
        buffer.destroy()
        return text

    first, second = run_gpu_ranks(driver, 2, body, own_stream=False)
    assert first == ""
    assert "rank 1 calls on a stream that rank 0 of the same process calls on too (the default stream)" in second
    assert "torch.cuda.stream(torch.cuda.Stream())" in second


def test_gpu_calls_a_missing_rank_is_named_at_the_next_call_and_at_the_end(
    variables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables(TIMEOUT_S=0.3)
    driver = install(monkeypatch, FakeDriver())
    c = case(92, "uniform", num_ranks=2, num_experts=4, hidden=128, max_tokens=8)

    def body(group: ThreadGroup) -> list[type]:
        seen: list[type] = []
        hint = Buffer.get_low_latency_rdma_size_hint(8, 128, 2, 4)
        buffers = [Buffer(group, 0, hint, low_latency_mode=True) for _ in range(2)]
        for number, buffer in enumerate(buffers):
            if group.rank() == 0:
                got = buffer.low_latency_dispatch(c.x[0], c.topk_idx[0], 8, 4)
                driver.settle()
                with pytest.raises(PeerTimeout, match="rank 1 .*in dispatch.*reported by rank 0"):
                    if number == 0:
                        buffer.low_latency_dispatch(c.x[0], c.topk_idx[0], 8, 4)
                    else:
                        buffer.destroy()  # nobody has been told yet
                seen.append(type(got))
            group.barrier()
            buffer.destroy()
        return seen

    assert run_gpu_ranks(driver, 2, body) == [[tuple, tuple], []]
    assert driver.held() == {"allocated": 0, "opened": 0, "pinned": 0}


def test_gpu_calls_ranks_leave_in_any_order(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = install(monkeypatch, FakeDriver())
    c = case(93, "uniform", num_ranks=2, num_experts=4, hidden=128, max_tokens=8)

    def body(group: ThreadGroup) -> None:
        buffer = Buffer(group, 0, Buffer.get_low_latency_rdma_size_hint(8, 128, 2, 4), low_latency_mode=True)
        buffer.barrier()
        if group.rank() == 1:
            buffer.destroy()
        group.barrier()
        if group.rank() == 0:  # kernels look at the words of the rank that is gone
            buffer.low_latency_dispatch(c.x[0], c.topk_idx[0], 8, 4)
            driver.settle()
            with pytest.raises(PeerLost, match="rank 1"):
                buffer.barrier()
            buffer.destroy()

    run_gpu_ranks(driver, 2, body)
    assert driver.held() == {"allocated": 0, "opened": 0, "pinned": 0}


@pytest.mark.parametrize("per_node", [0, 1])
def test_gpu_calls_zero_copy(variables: Any, monkeypatch: pytest.MonkeyPatch, per_node: int) -> None:
    variables(RANKS_PER_NODE=per_node)
    driver = install(monkeypatch, FakeDriver())
    cases = [case(94 + t, "uniform", num_ranks=2, num_experts=4, hidden=h, max_tokens=m)
             for t, (h, m) in enumerate([(128, 4), (128, 4), (256, 8), (128, 4)])]  # fmt: skip
    sums = combined_of(cases)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        with low_latency(group, cases[2].shape) as buffer:
            for turn, c in enumerate(cases):
                m = c.shape.max_tokens
                got = buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], m, 4, use_fp8=False)
                rows = buffer.get_next_low_latency_combine_buffer(got[2])
                driver.settle()  # what a GEMM would have written on the caller's stream
                rows.copy_(expert_rows(rank, c.shape))
                out, _, _ = buffer.low_latency_combine(
                    rows, c.topk_idx[rank], c.topk_weights[rank], got[2], zero_copy=True
                )
                driver.settle()
                assert same(out, sums[turn][rank])

    run_gpu_ranks(driver, 2, body)
    assert driver.held() == {"allocated": 0, "opened": 0, "pinned": 0}


def test_gpu_calls_capture_is_an_event_of_the_callers_stream(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = install(monkeypatch, FakeDriver())

    def body(group: ThreadGroup) -> None:
        with throughput(group) as buffer:
            gate = Gate(buffer._device)
            buffer.get_dispatch_layout(torch.zeros(1, 1, dtype=torch.int64), 1)  # this stream waits for the comm stream
            captured = buffer.capture()
            assert not captured.event.query()
            gate.open()
            driver.settle()
            assert captured.event.query()
            captured.current_stream_wait()
        assert EventOverlap(EventHandle()).event.query()

    run_gpu_ranks(driver, 1, body)
    assert EventHandle().query()  # without a Buffer on a GPU: the calling thread


def test_gpu_calls_a_hook_on_another_stream_keeps_memory_for_it(
    variables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory was taken on the sending half's stream: torch's allocator is told of the other one, and of no other."""
    driver = install(monkeypatch, FakeDriver())
    c = case(98, "uniform", num_ranks=1, num_experts=2, hidden=128, max_tokens=4)

    def body(group: ThreadGroup) -> None:
        with low_latency(group, c.shape) as buffer:
            for other in (driver.new_stream(), driver.current_stream()):
                driver.used.clear()
                got = buffer.low_latency_dispatch(c.x[0], c.topk_idx[0], 4, 2, use_fp8=False, return_recv_hook=True)
                assert not driver.used  # what this stream frees is used by this stream next
                with driver.on(other):
                    got[4]()
                    driver.settle()
                tensors = {c.x[0].data_ptr(), got[0].data_ptr(), got[1].data_ptr(), *(h.data_ptr() for h in got[2][:2])}
                mine = other is driver.current_stream()
                assert not driver.used if mine else tensors <= {address for address, _ in driver.used}
                assert {key for _, key in driver.used} <= {other.key}
                assert_low_latency(got[:3], reference_of(c)[0])

    run_gpu_ranks(driver, 1, body)


@pytest.mark.parametrize("loading, warned", [(None, True), ("LAZY", True), ("EAGER", False)])
def test_gpu_calls_overlap_with_signals_warns_where_kernels_are_loaded_late(
    variables: Any, monkeypatch: pytest.MonkeyPatch, loading: str | None, warned: bool
) -> None:
    driver = install(monkeypatch, FakeDriver())
    monkeypatch.delenv("CUDA_MODULE_LOADING", raising=False)
    if loading is not None:
        monkeypatch.setenv("CUDA_MODULE_LOADING", loading)
    overlap._warn_once.cache_clear()
    c = case(99, "uniform", num_ranks=1, num_experts=2, hidden=128, max_tokens=4)
    wanted = combined_of([c])[0]

    def body(group: ThreadGroup) -> None:
        with low_latency(group, c.shape) as buffer:
            got = buffer.low_latency_dispatch(c.x[0], c.topk_idx[0], 4, 2, use_fp8=False)
            there = {"src_signals": torch.ones(2, dtype=torch.int32), "src_signal_expect_value": 1}
            for signals in ({}, there, there):  # without signals nothing is waited for
                arguments = (expert_rows(0, c.shape), c.topk_idx[0], c.topk_weights[0], got[2])
                out, _, _ = buffer.low_latency_combine(*arguments, overlap=True, **signals)  # type: ignore[arg-type]
                driver.settle()
                assert same(out, wanted[0])

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run_gpu_ranks(driver, 1, body)
    told = [str(w.message) for w in seen if "overlap" in str(w.message)]
    assert len(told) == int(warned), told
    assert all("CUDA_MODULE_LOADING=EAGER and CUDA_DEVICE_MAX_CONNECTIONS=32" in text for text in told)
