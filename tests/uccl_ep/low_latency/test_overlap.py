"""Single-batch overlap as callers see it: rows leave while others are computed, in both forms, and what is refused."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import pytest
import torch

from tests.uccl_ep.ranks import assert_refused, case, expert_rows, low_latency, reference_of, same
from uccl_ep import Buffer, ThreadGroup, UcclEpError, reference, run_ranks
from uccl_ep.low_latency.overlap import Overlap, OverlapArguments
from uccl_ep.reference import RandomCase

Tensor = torch.Tensor


def arguments(**given: Any) -> OverlapArguments:
    """The keywords of low_latency_combine, with its defaults and overlap=True."""
    base = {"overlap": True, "src_signals": None, "src_signal_expect_value": 0, "packed_recv_count": None}
    return OverlapArguments(**{**base, "comp_signal": None, "block_m": 64, "threshold": 0, "num_sms": 0, **given})


def sums_of(c: RandomCase) -> list[Tensor]:
    rows = [expert_rows(r, c.shape) for r in range(c.shape.num_ranks)]
    return reference.low_latency_combine(rows, c.topk_idx, c.topk_weights, reference_of(c))


def signals_of(form: str, c: RandomCase, count: Tensor) -> tuple[dict[str, Any], Tensor, int, int]:
    """(keywords, signals, signals an expert, value) of a form."""
    local, rows = c.shape.num_experts // c.shape.num_ranks, c.shape.num_ranks * c.shape.max_tokens
    if form == "src_signals":
        signals = torch.zeros(local, dtype=torch.int32)
        return {"src_signals": signals.view(torch.uint32), "src_signal_expect_value": 1}, signals, 1, 1
    per_expert = -(-rows // 64)
    signals = torch.zeros(local * per_expert, dtype=torch.int32)
    names = {"packed_recv_count": count, "comp_signal": signals, "block_m": 64, "threshold": 10, "num_sms": 3}
    return names, signals, per_expert, 10


@pytest.mark.parametrize("per_node", [1, 2])
@pytest.mark.parametrize("form", ["src_signals", "comp_signal"])
def test_low_latency_overlap_hook_returns_before_rows_are_computed(variables: Any, form: str, per_node: int) -> None:
    """One thread a rank: the call, then the computation, then the hook."""
    variables(RANKS_PER_NODE=per_node, TRANSPORT="loopback")
    c = case(71, "uniform", num_ranks=2, hidden=128, max_tokens=50)
    due = sums_of(c)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        with low_latency(group, c.shape) as buffer:
            for _ in range(3):
                _, count, handle, _, _ = buffer.low_latency_dispatch(
                    c.x[rank], c.topk_idx[rank], c.shape.max_tokens, c.shape.num_experts, use_fp8=False
                )
                wanted = expert_rows(rank, c.shape)
                rows = torch.full_like(wanted, torch.nan)
                names, signals, per_expert, value = signals_of(form, c, count)
                out, event, hook = buffer.low_latency_combine(
                    rows, c.topk_idx[rank], c.topk_weights[rank], handle, overlap=True, return_recv_hook=True, **names
                )
                assert event.event is None and hook is not None
                for expert in range(wanted.shape[0]):
                    rows[expert] = wanted[expert]
                    signals[expert * per_expert : (expert + 1) * per_expert] = value
                hook()
                assert same(out, due[rank])

    run_ranks(2, body)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_low_latency_overlap_with_another_thread_that_computes(variables: Any, asynchronous: bool) -> None:
    c = case(72, "uniform", num_ranks=2, hidden=128, max_tokens=16)
    due = sums_of(c)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        with low_latency(group, c.shape) as buffer:
            _, count, handle, _, _ = buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], 16, 8, use_fp8=False)
            wanted = expert_rows(rank, c.shape)
            rows = torch.full_like(wanted, torch.nan)
            names, signals, _, value = signals_of("comp_signal", c, count)

            def compute() -> None:
                for expert in range(wanted.shape[0]):
                    rows[expert] = wanted[expert]
                    signals[expert] = value

            thread = threading.Thread(target=compute)
            thread.start()
            out, event, hook = buffer.low_latency_combine(
                rows, c.topk_idx[rank], c.topk_weights[rank], handle, overlap=True, async_finish=asynchronous, **names
            )
            thread.join()
            assert hook is None and (event.event is not None) == asynchronous
            if asynchronous:
                event.current_stream_wait()
            assert same(out, due[rank])

    run_ranks(2, body)


def test_low_latency_overlap_rows_of_an_expert_cross_before_the_next_is_computed(variables: Any) -> None:
    """The trace, by the receiving proxy's counters: rows of expert 0 have arrived while expert 1 has no signal."""
    variables(RANKS_PER_NODE=1, TRANSPORT="loopback")
    c = case(73, num_ranks=2, num_experts=4, num_topk=2, hidden=128, max_tokens=8)
    c.x[:] = [torch.ones(8, 128, dtype=torch.bfloat16) for _ in c.x]
    c.topk_idx[:] = [torch.tensor([[0, 1]] * 8), torch.tensor([[0, 1]] * 8)]  # everything to rank 0's two experts
    c.topk_weights[:] = [torch.full((8, 2), 0.5) for _ in c.x]
    due = sums_of(c)
    buffers: dict[int, Buffer] = {}

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        with low_latency(group, c.shape) as buffer:
            buffers[rank] = buffer
            _, _, handle, _, _ = buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], 8, 4, use_fp8=False)
            group.barrier()
            names, signals, _, value = signals_of("src_signals", c, torch.zeros(2))
            signals[:] = 0 if rank == 0 else value

            def arrived() -> int:
                return int(buffers[1].stats()["peers"][0]["arrivals"])

            before = arrived()
            group.barrier()
            out, _, hook = buffer.low_latency_combine(
                expert_rows(rank, c.shape), c.topk_idx[rank], c.topk_weights[rank], handle,
                overlap=True, return_recv_hook=True, **names,
            )  # fmt: skip
            if rank == 0:
                trace = []
                for expert in range(2):
                    signals[expert] = value
                    end = time.monotonic() + 10
                    while arrived() - before < 8 * (expert + 1) + 1 and time.monotonic() < end:
                        pass
                    trace.append(arrived() - before)
                assert trace == [9, 17]  # rows, and the message that says how many there will be
            assert hook is not None
            hook()
            assert same(out, due[rank])

    run_ranks(2, body)


def test_low_latency_overlap_without_signals_is_the_plain_combine(variables: Any) -> None:
    """Signals that are given with overlap=False are not waited for, as in DeepEP: the stream is the order."""
    c = case(74, num_ranks=2, hidden=512, max_tokens=16)
    due = sums_of(c)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        with low_latency(group, c.shape) as buffer:
            never = torch.zeros(4, dtype=torch.int32)
            for names in (
                {"overlap": True}, {"overlap": True, "num_sms": 1}, {"overlap": True, "src_signals": never},
                {"overlap": False, "comp_signal": never, "threshold": 5, "num_sms": 3},
                {"overlap": False, "src_signals": never, "src_signal_expect_value": 1},
            ):  # fmt: skip
                _, _, handle, _, _ = buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], 16, 8, use_fp8=False)
                rows, ids, weights = expert_rows(rank, c.shape), c.topk_idx[rank], c.topk_weights[rank]
                assert same(buffer.low_latency_combine(rows, ids, weights, handle, **names)[0], due[rank])

    run_ranks(2, body)


def test_low_latency_overlap_a_signal_that_never_comes_is_named(variables: Any) -> None:
    variables(TIMEOUT_S=1)
    c = case(75, "uniform", num_ranks=1, hidden=128, max_tokens=16)

    def body(group: ThreadGroup) -> None:
        hint = Buffer.get_low_latency_rdma_size_hint(16, 128, 1, 8)
        buffer = Buffer(group, 0, hint, low_latency_mode=True)
        try:
            _, _, handle, _, _ = buffer.low_latency_dispatch(c.x[0], c.topk_idx[0], 16, 8, use_fp8=False)
            signals = torch.full((8,), 4, dtype=torch.int32)
            expert = int(c.topk_idx[0].max())
            signals[expert] = 3
            with pytest.raises(UcclEpError) as error:
                buffer.low_latency_combine(
                    expert_rows(0, c.shape), c.topk_idx[0], c.topk_weights[0], handle,
                    overlap=True, src_signals=signals, src_signal_expect_value=4,
                )  # fmt: skip
            for words in ("rank 0", f"local expert {expert}", "expected 4, seen 3"):
                assert words in str(error.value)
        finally:
            buffer.destroy()

    run_ranks(1, body)


def test_low_latency_overlap_refusals() -> None:
    ints = torch.zeros(8, dtype=torch.int32)
    for given, words in (
        ({"overlap": "yes"}, ["overlap='yes'"]),
        ({"src_signals": ints, "comp_signal": ints}, ["src_signals and comp_signal=both", "given one at a time"]),
        ({"src_signals": [0, 0]}, ["src_signals=[0, 0]", "uint32", "at least 2 elements"]),
        ({"src_signals": ints[:1]}, ["src_signals=a tensor of shape (1,), torch.int32", "at least 2"]),
        ({"src_signals": ints.long()}, ["src_signals=", "int64"]),
        ({"src_signals": ints[::2]}, ["contiguous"]),
        ({"src_signals": ints, "src_signal_expect_value": -1}, ["src_signal_expect_value=-1", "0 to 2147483647"]),
        ({"src_signals": ints, "src_signal_expect_value": 1 << 31}, ["src_signal_expect_value=2147483648"]),
        ({"comp_signal": ints, "threshold": 0}, ["threshold=0", "1 to 2147483647", "who computes"]),
        ({"comp_signal": ints, "threshold": 1, "block_m": 0}, ["block_m=0"]),
        ({"comp_signal": ints, "threshold": 1, "block_m": 16}, ["(8,)", "2 experts x 7 blocks of block_m=16 rows"]),
        ({"comp_signal": ints.view(torch.uint32), "threshold": 1}, ["comp_signal=", "uint32"]),
        ({"comp_signal": ints, "threshold": 1, "packed_recv_count": ints}, ["packed_recv_count=", "2 elements"]),
        ({"num_sms": -1}, ["num_sms=-1"]),
    ):
        assert_refused(partial(arguments(**given).check, 2, 100), words)


def test_low_latency_overlap_says_what_kernels_wait_for() -> None:
    signals = torch.zeros(16, dtype=torch.int32)
    assert arguments(overlap=False, src_signals="nonsense").check(2, 100) is None
    assert arguments().check(2, 100) == Overlap(None, 1, 100, 0, 32)
    by_experts = arguments(src_signals=signals, src_signal_expect_value=9).check(2, 100)
    assert by_experts is not None and by_experts.signals is signals
    assert (by_experts.per_expert, by_experts.rows, by_experts.value, by_experts.num_sms) == (1, 100, 9, 32)
    by_blocks = arguments(comp_signal=signals, block_m=16, threshold=5).check(2, 100)
    assert by_blocks is not None and by_blocks.signals is signals
    assert (by_blocks.per_expert, by_blocks.rows, by_blocks.value, by_blocks.num_sms) == (7, 16, 5, 3)
    assert arguments(comp_signal=signals, threshold=5, num_sms=7).check(2, 100).num_sms == 7  # type: ignore[union-attr]
