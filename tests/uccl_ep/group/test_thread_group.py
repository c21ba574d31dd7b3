"""Ranks as threads: exchanges, errors that end the others' waits, and the error that a caller sees."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from uccl_ep import PeerLost, PeerTimeout, ThreadGroup, run_ranks
from uccl_ep.group import thread_group


def test_thread_group_gathers_by_rank_many_times() -> None:
    def body(group: ThreadGroup) -> list[list[Any]]:
        assert group.size() == 5
        return [group.all_gather_object((turn, group.rank())) for turn in range(50)]

    for seen in run_ranks(5, body):
        assert seen == [[(turn, rank) for rank in range(5)] for turn in range(50)]


def test_thread_group_gathered_lists_are_each_ranks_own() -> None:
    def body(group: ThreadGroup) -> list[int]:
        gathered = group.all_gather_object(group.rank())
        gathered.append(99)
        group.barrier()
        return gathered

    assert run_ranks(2, body) == [[0, 1, 99], [0, 1, 99]]


def test_thread_group_barrier_lets_nobody_pass_early() -> None:
    arrived = []

    def body(group: ThreadGroup) -> int:
        arrived.append(group.rank())
        group.barrier()
        return len(arrived)

    assert run_ranks(4, body) == [4] * 4


def test_thread_group_of_one() -> None:
    assert run_ranks(1, lambda group: group.all_gather_object("x")) == [["x"]]


@pytest.mark.parametrize("size", [0, -3])
def test_thread_group_needs_a_rank(size: int) -> None:
    with pytest.raises(ValueError, match=f"size={size}"):
        ThreadGroup.create(size)


def test_thread_group_an_error_frees_the_ranks_that_wait_and_is_the_one_raised() -> None:
    freed = []

    def body(group: ThreadGroup) -> None:
        if group.rank() == 2:
            raise KeyError("expert 7")
        try:
            group.barrier()
        except threading.BrokenBarrierError:
            freed.append(group.rank())
            raise

    with pytest.raises(KeyError) as caught:
        run_ranks(3, body)
    assert sorted(freed) == [0, 1]
    assert "[rank 2] expert 7" in str(caught.value)


def test_thread_group_the_lowest_ranks_error_is_raised() -> None:
    def body(group: ThreadGroup) -> None:
        raise ValueError(f"from {group.rank()}")

    with pytest.raises(ValueError, match=r"\[rank 0\] from 0"):
        run_ranks(3, body)


@pytest.mark.parametrize("consequence", [PeerTimeout, PeerLost, threading.BrokenBarrierError])
def test_thread_group_the_cause_is_raised_and_not_its_consequence(consequence: type[Exception]) -> None:
    def body(group: ThreadGroup) -> None:
        raise consequence() if group.rank() == 0 else StopIteration

    def broken(group: ThreadGroup) -> None:
        if group.rank() == 0:
            group.barrier()
        raise consequence()

    with pytest.raises(StopIteration, match=r"\[rank 1\]"):
        run_ranks(2, body)
    if consequence is not threading.BrokenBarrierError:  # a broken wait is the weakest reason of all
        with pytest.raises(consequence):
            run_ranks(2, broken)
    with pytest.raises(consequence):  # when there is nothing else
        run_ranks(1, body)


def test_thread_group_a_rank_that_does_not_come_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_group, "_EXCHANGE_TIMEOUT_S", 0.2)
    done = threading.Event()

    def body(group: ThreadGroup) -> None:
        if group.rank() == 0:
            with pytest.raises(threading.BrokenBarrierError):
                group.all_gather_object(1)
            done.set()
        else:
            assert done.wait(20)

    run_ranks(2, body)


def test_thread_group_no_thread_is_left() -> None:
    before = threading.active_count()
    run_ranks(6, lambda group: group.barrier())
    assert threading.active_count() == before
