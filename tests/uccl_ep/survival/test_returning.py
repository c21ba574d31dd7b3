"""Ranks that were left out of low-latency calls take part again in place, rows to the bit, and nothing of before the
return is taken for what comes after it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.uccl_ep.ranks import case, low_latency, same
from tests.uccl_ep.survival.test_low_latency_masks import call_both, mask_of, results_of
from uccl_ep import Buffer, NotSupported, ThreadGroup, run_ranks

RANKS = 4
WORLDS = [
    pytest.param("auto", 0, id="one node"),
    pytest.param("loopback", 2, id="two nodes, loopback"),
    pytest.param("tcp", 2, id="two nodes, tcp"),
    pytest.param("shared_memory", 1, id="a node each"),
]
Apart = list[set[int]]


def apart(*lost: int) -> Apart:
    """Masks of each rank when `lost` are left out by the others, and each of them by everybody."""
    everybody = set(range(RANKS))
    return [everybody - {r} if r in lost else set(lost) for r in everybody]


@pytest.mark.mostly_slow(quick=2)
@pytest.mark.parametrize("transport, per_node", WORLDS)
def test_returning_ranks_that_stood_still(variables: Any, transport: str, per_node: int) -> None:
    """They made no call meanwhile and ask for nothing: their next call is the others' next call. Odd and even numbers
    of missed calls, more than the proxies' window, and a barrier among them."""
    variables(TRANSPORT=transport, RANKS_PER_NODE=per_node, TIMEOUT_S=20)
    plays = [(case(80 + n, "uniform", num_ranks=RANKS, num_topk=4, hidden=128), lost, missed)
             for n, (lost, missed) in enumerate([((2,), 1), ((1, 2), 2), ((0,), 7), ((3,), 4)])]  # fmt: skip

    def body(group: ThreadGroup) -> None:
        with low_latency(group, plays[0][0].shape, enable_shrink=True) as buffer:
            rank = group.rank()
            for c, lost, missed in plays:
                masked = [set() if r in lost else set(lost) for r in range(RANKS)]
                whole, parted = results_of(c), results_of(c, masked)
                for _ in range(2):
                    call_both(buffer, c, *whole)
                group.barrier()
                if rank not in lost:
                    for r in lost:
                        buffer.low_latency_update_mask_buffer(r, True)
                    for _ in range(missed):
                        call_both(buffer, c, *parted)
                        buffer.barrier()
                    for r in lost:
                        buffer.low_latency_update_mask_buffer(r)
                group.barrier()
                for _ in range(3):
                    call_both(buffer, c, *whole)
                    buffer.barrier()
                assert mask_of(buffer) == [0] * RANKS

    run_ranks(RANKS, body)


@pytest.mark.parametrize("transport, per_node", WORLDS)
def test_returning_in_any_order_while_others_wait(variables: Any, transport: str, per_node: int) -> None:
    """All ask for each other at their own time and in orders of their own, those that went on apart too."""
    variables(TRANSPORT=transport, RANKS_PER_NODE=per_node, TIMEOUT_S=20)
    c = case(85, "uniform", num_ranks=RANKS, num_topk=4, hidden=128)
    masked = apart(1, 2)
    whole, parted = results_of(c), results_of(c, masked)

    def body(group: ThreadGroup) -> None:
        with low_latency(group, c.shape, enable_shrink=True) as buffer:
            rank = group.rank()
            for missed in (1, 3, 6):
                call_both(buffer, c, *whole)
                group.barrier()
                for r in masked[rank]:
                    buffer.low_latency_update_mask_buffer(r, True)
                for _ in range(missed):
                    call_both(buffer, c, *parted)
                group.barrier()
                for r in sorted(masked[rank], key=lambda r: (r * (2 * rank + 1)) % 5):
                    buffer.low_latency_update_mask_buffer(r)
                call_both(buffer, c, *whole)

    run_ranks(RANKS, body)


@pytest.mark.mostly_slow(quick=2)
@pytest.mark.parametrize("transport, per_node", WORLDS)
def test_returning_rank_that_stopped_inside_of_a_call(variables: Any, transport: str, per_node: int) -> None:
    """The others have overwritten what it had not read: its call ends without their rows, never with other calls'."""
    variables(TRANSPORT=transport, RANKS_PER_NODE=per_node, TIMEOUT_S=1.5)
    first, second = (case(86 + n, "uniform", num_ranks=RANKS, num_topk=4, hidden=128) for n in range(2))
    lost = 1
    masked = [set() if r == lost else {lost} for r in range(RANKS)]
    parted, whole = results_of(second, masked), results_of(second)

    def body(group: ThreadGroup) -> None:
        with low_latency(group, first.shape, enable_shrink=True) as buffer:
            rank = group.rank()
            call_both(buffer, first, *results_of(first))
            if rank == lost:
                rows, _, handle, _, hook = buffer.low_latency_dispatch(
                    first.x[rank], first.topk_idx[rank], first.shape.max_tokens, first.shape.num_experts,
                    use_fp8=False, return_recv_hook=True,
                )  # fmt: skip
            group.barrier()
            if rank != lost:
                buffer.low_latency_update_mask_buffer(lost, True)
                for _ in range(3):
                    call_both(buffer, second, *parted)
            group.barrier()
            if rank == lost:
                hook()
                assert mask_of(buffer) == [int(r != lost) for r in range(RANKS)]
                own = torch.zeros_like(handle[1])
                own[:, lost] = handle[1][:, lost]
                assert same(handle[1] & 0xFFFFFFFF, own & 0xFFFFFFFF)
                sums, _, _ = buffer.low_latency_combine(rows, first.topk_idx[rank], first.topk_weights[rank], handle)
                assert torch.isfinite(sums.float()).all()
            buffer.low_latency_clean_mask_buffer()
            group.barrier()
            for _ in range(3):
                call_both(buffer, second, *whole)

    run_ranks(RANKS, body)


def test_returning_rank_that_never_comes_stays_masked(variables: Any) -> None:
    variables(RANKS_PER_NODE=1, TRANSPORT="loopback", TIMEOUT_S=0.6)
    c = case(88, "uniform", num_ranks=RANKS, num_topk=4, hidden=128)
    masked = [set() if r == 2 else {2} for r in range(RANKS)]
    parted = results_of(c, masked)

    def body(group: ThreadGroup) -> None:
        with low_latency(group, c.shape, enable_shrink=True) as buffer:
            if group.rank() != 2:
                buffer.low_latency_update_mask_buffer(2, True)
                call_both(buffer, c, *parted)
                buffer.low_latency_update_mask_buffer(2)
                for _ in range(3):
                    call_both(buffer, c, *parted)
                assert mask_of(buffer) == [0, 0, 1, 0]
            group.barrier()

    run_ranks(RANKS, body)


@pytest.mark.parametrize("transport, per_node", WORLDS[:2])
def test_returning_is_refused_for_a_rank_that_has_ended(variables: Any, transport: str, per_node: int) -> None:
    variables(TRANSPORT=transport, RANKS_PER_NODE=per_node, TIMEOUT_S=5)
    c = case(89, "uniform", num_ranks=RANKS, num_topk=4, hidden=128)
    parted = results_of(c, [set() if r == 2 else {2} for r in range(RANKS)])

    def body(group: ThreadGroup) -> None:
        with low_latency(group, c.shape, enable_shrink=True) as buffer:
            if group.rank() == 2:
                buffer.destroy()
                return
            for _ in range(2):
                call_both(buffer, c, *parted)
            for call in (lambda: buffer.low_latency_update_mask_buffer(2), buffer.low_latency_clean_mask_buffer):
                with pytest.raises(NotSupported, match=r"unmasking rank\(s\) 2: a rank that has ended.*recover"):
                    call()
            call_both(buffer, c, *parted)

    run_ranks(RANKS, body)


@pytest.mark.parametrize("per_node", [0, 1])
def test_a_mask_of_one_side_alone_takes_no_old_rows(variables: Any, per_node: int) -> None:
    """Who is masked by a rank that it does not mask gets nothing from it, and masks it when its time is over."""
    variables(RANKS_PER_NODE=per_node, TRANSPORT="loopback" if per_node else "auto", TIMEOUT_S=0.8)
    c, later = (case(90 + n, "uniform", num_ranks=2, num_topk=2, num_experts=4, hidden=128) for n in range(2))
    alone = results_of(later, [{1}, {0}])

    def body(group: ThreadGroup) -> None:
        with low_latency(group, c.shape, enable_shrink=True) as buffer:
            for _ in range(2):
                call_both(buffer, c, *results_of(c))
            group.barrier()
            if group.rank() == 0:
                buffer.low_latency_update_mask_buffer(1, True)
            step(buffer, later)
            assert mask_of(buffer) == [int(r != group.rank()) for r in range(2)]
            call_both(buffer, later, *alone)

    def step(buffer: Buffer, c: Any) -> None:
        rank = buffer.rank
        sent = buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], c.shape.max_tokens, 4, use_fp8=False)
        sums, _, _ = buffer.low_latency_combine(
            torch.full_like(sent[0], 7.0), c.topk_idx[rank], c.topk_weights[rank], sent[2]
        )
        own = (c.topk_idx[rank] // 2 == rank) & (c.topk_idx[rank] >= 0)
        wanted = (c.topk_weights[rank] * own).sum(dim=1) * 7.0
        assert torch.allclose(sums[:, 0].float(), wanted, rtol=2e-2, atol=1e-3)

    run_ranks(2, body)
