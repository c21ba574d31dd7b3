"""agree_on_masks: all ranks that are left have the same mask from the same call on, whatever each of them saw."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tests.uccl_ep.ranks import assert_refused, case, low_latency
from tests.uccl_ep.survival.test_low_latency_masks import call_both, mask_of, results_of
from uccl_ep import InvalidArgument, PeerLost, ThreadGroup, run_ranks

RANKS = 5
WORLDS = [
    pytest.param("auto", 0, id="one node"),
    pytest.param("tcp", 2, id="uneven nodes, tcp"),
    pytest.param("loopback", 1, id="a node each"),
]


def without(*lost: int) -> list[set[int]]:
    return [set() if r in lost else set(lost) for r in range(RANKS)]


@pytest.mark.parametrize("transport, per_node", WORLDS)
def test_agreed_masks_join_what_each_rank_saw(variables: Any, transport: str, per_node: int) -> None:
    """Two ranks fail at once and every rank has seen something else. Then they come back, and another one goes."""
    variables(TRANSPORT=transport, RANKS_PER_NODE=per_node, TIMEOUT_S=20)
    c = case(170, "uniform", num_ranks=RANKS, num_experts=10, num_topk=4, hidden=128)
    whole, parted, third = results_of(c), results_of(c, without(1, 4)), results_of(c, without(2))
    seen = {0: [1], 2: [4], 3: []}

    def body(group: ThreadGroup) -> None:
        with low_latency(group, c.shape, enable_shrink=True) as buffer:
            rank = group.rank()
            assert buffer.agree_on_masks() == []
            call_both(buffer, c, *whole)
            group.barrier()
            if rank in seen:
                for other in seen[rank]:
                    buffer.low_latency_update_mask_buffer(other, True)
                assert buffer.agree_on_masks() == [1, 4]
                for _ in range(3):
                    call_both(buffer, c, *parted)
                assert mask_of(buffer) == [0, 1, 0, 0, 1]
                assert buffer.agree_on_masks() == [1, 4]
                buffer.low_latency_clean_mask_buffer()
            group.barrier()
            for _ in range(2):
                call_both(buffer, c, *whole)
            assert buffer.agree_on_masks() == []  # those that stood still take part again in this, too
            group.barrier()
            if rank == 2:
                return
            if rank == 3:
                buffer.low_latency_update_mask_buffer(2, True)
            assert buffer.agree_on_masks() == [2]
            for _ in range(2):
                call_both(buffer, c, *third)

    run_ranks(RANKS, body)


def test_agreed_masks_name_who_has_ended_or_does_not_come(variables: Any) -> None:
    variables(TRANSPORT="tcp", RANKS_PER_NODE=2, TIMEOUT_S=20)
    c = case(171, "uniform", num_ranks=RANKS, num_experts=10, num_topk=4, hidden=128)
    parted = results_of(c, without(0, 3))

    def body(group: ThreadGroup) -> None:
        with low_latency(group, c.shape, enable_shrink=True) as buffer:
            if group.rank() == 0:
                buffer.destroy()
            if group.rank() in (0, 3):  # rank 3 is there, and calls nothing
                return
            begin = time.monotonic()
            assert buffer.agree_on_masks(timeout_s=3.0) == [0, 3]
            assert time.monotonic() - begin >= 2.9
            for _ in range(2):
                call_both(buffer, c, *parted)

    run_ranks(RANKS, body)


def test_agreed_masks_tell_the_rank_that_is_left_out(variables: Any) -> None:
    """It is alive and takes part: it is told, masks the others, and comes back when they take it back."""
    variables(TRANSPORT="loopback", RANKS_PER_NODE=1, TIMEOUT_S=20)
    c = case(172, "uniform", num_ranks=RANKS, num_experts=10, num_topk=4, hidden=128)
    whole, parted = results_of(c), results_of(c, without(2))

    def body(group: ThreadGroup) -> None:
        with low_latency(group, c.shape, enable_shrink=True) as buffer:
            call_both(buffer, c, *whole)
            group.barrier()
            if group.rank() == 4:
                buffer.low_latency_update_mask_buffer(2, True)
            if group.rank() == 2:
                with pytest.raises(PeerLost, match="rank 2 was excluded"):
                    buffer.agree_on_masks()
                assert mask_of(buffer) == [1, 1, 0, 1, 1]
            else:
                assert buffer.agree_on_masks() == [2]
                for _ in range(3):
                    call_both(buffer, c, *parted)
            group.barrier()
            buffer.low_latency_clean_mask_buffer()
            group.barrier()
            for _ in range(2):
                call_both(buffer, c, *whole)
            assert buffer.agree_on_masks() == []

    run_ranks(RANKS, body)


@pytest.mark.parametrize("seed", range(4))
def test_agreed_masks_are_the_same_whoever_ends_meanwhile(variables: Any, seed: int) -> None:
    """Ranks end while others agree, at moments of their own: all that are left return the same, again and again."""
    variables(TRANSPORT="tcp", RANKS_PER_NODE=1, TIMEOUT_S=20)
    c = case(173, "uniform", num_ranks=RANKS, num_experts=10, num_topk=4, hidden=128)
    ends = {1: 0.002 * seed, 3: 0.005 * (seed % 3)}
    found: dict[int, list[list[int]]] = {r: [] for r in range(RANKS)}
    lock = threading.Lock()

    def body(group: ThreadGroup) -> None:
        with low_latency(group, c.shape, enable_shrink=True) as buffer:
            rank = group.rank()
            group.barrier()
            if rank in ends:
                threading.Event().wait(ends[rank])
                buffer.destroy()
                return
            for _ in range(3):
                agreed = buffer.agree_on_masks(timeout_s=10)
                with lock:
                    found[rank].append(agreed)
            assert mask_of(buffer) == [int(r in found[rank][-1]) for r in range(RANKS)]
            call_both(buffer, c, *results_of(c, without(*found[rank][-1])))

    run_ranks(RANKS, body)
    assert found[0] == found[2] == found[4], found
    assert found[0][-1] == [1, 3]


def test_agreed_masks_need_enable_shrink_and_a_time(variables: Any) -> None:
    c = case(174, num_ranks=1)
    with low_latency(ThreadGroup.create(1)[0], c.shape) as buffer:
        with pytest.raises(InvalidArgument, match="mask methods need a Buffer made with enable_shrink=True"):
            buffer.agree_on_masks()
    with low_latency(ThreadGroup.create(1)[0], c.shape, enable_shrink=True) as buffer:
        for wrong in (0, -1.0, True, "1", float("inf"), float("nan")):
            assert_refused(lambda w=wrong: buffer.agree_on_masks(timeout_s=w), ["timeout_s=", "more than 0"])
        assert buffer.agree_on_masks(timeout_s=3) == []
