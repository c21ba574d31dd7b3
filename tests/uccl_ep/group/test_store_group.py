"""Ranks that meet in a store: with absent numbers, with what earlier processes left there, and with one missing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from torch.distributed import HashStore

from tests.uccl_ep.ranks import assert_refused
from uccl_ep import PeerTimeout
from uccl_ep.group.store_group import StoreGroup


def _together(*bodies: Callable[[], Any]) -> list[Any]:
    results: list[Any] = [None] * len(bodies)

    def one(at: int) -> None:
        results[at] = bodies[at]()

    threads = [threading.Thread(target=one, args=(at,)) for at in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def _gather(store: Any, rank: int, members: list[int], value: Any = None, size: int = 5) -> tuple[list[Any], ...]:
    group = StoreGroup(store, rank, size, members, timeout_s=30)
    assert (group.rank(), group.size(), group.absent) == (rank, size, frozenset(range(size)) - set(members))
    first = group.all_gather_object((rank, value))
    return first, group.all_gather_object(value)


def test_store_group_gathers_from_members_only() -> None:
    store, members = HashStore(), [0, 2, 3]
    found = _together(*(lambda r=r: _gather(store, r, members, b"of %d" % r) for r in members))
    first = [[0, b"of 0"], None, [2, b"of 2"], [3, b"of 3"], None]
    assert found == [(first, [b"of 0", None, b"of 2", b"of 3", None])] * 3


def test_store_group_of_the_same_members_again_takes_nothing_for_its_own() -> None:
    """A rank's earlier process has left what it said; the others may come long before the new one, or after it."""
    store = HashStore()
    for number in range(4):
        found = _together(*(lambda r=r, n=number: _gather(store, r, [0, 1], n, 2) for r in range(2)))
        assert found == [([[0, number], [1, number]], [number, number])] * 2
    store.set("uccl_ep/0.1/1", "left by a process that died between what it said and the others' answer")
    early = threading.Event()

    def late() -> Any:
        assert not early.wait(0.05)  # the other one has looked
        return _gather(store, 1, [0, 1], 9, 2)

    assert _together(lambda: _gather(store, 0, [0, 1], 9, 2), late) == [([[0, 9], [1, 9]], [9, 9])] * 2


def test_store_group_names_who_does_not_come() -> None:
    with pytest.raises(
        PeerTimeout, match=r"rank 1 timed out in the start of a group.*rank\(s\) 1, 3 of members 0, 1, 3"
    ):
        StoreGroup(HashStore(), 0, 4, [0, 1, 3], timeout_s=0.05).all_gather_object(None)
    store = HashStore()
    groups = [StoreGroup(store, rank, 2, timeout_s=30) for rank in range(2)]
    _together(*(lambda g=g: g.all_gather_object(None) for g in groups))
    group = groups[0]
    group._timeout_s = 0.05
    with pytest.raises(PeerTimeout, match="rank 1 timed out") as late:
        group.all_gather_object(1)
    assert (late.value.rank, late.value.peer) == (0, 1)


def test_store_group_of_other_numbers() -> None:
    store = HashStore()
    group = StoreGroup(store, 0, 4, [0, 1])
    assert group.absent == {2, 3} and group.sized(3) is group
    assert (group.size(), group.absent) == (3, frozenset({2}))
    assert_refused(lambda: group.sized(1), ["size", "above 1"])
    assert_refused(lambda: StoreGroup(store, 2, 4, [0, 1]), ["members", "2 among them"])
    assert_refused(lambda: StoreGroup(store, 0, 4, [0, 4]), ["members", "0 to 3"])
