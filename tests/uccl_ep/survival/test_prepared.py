"""Ranks that disagree about a change of members: all get one error that names who prepared what, before one step, and
go on; ranks are threads. Every call is compared with the reference, row by row."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.end_to_end.world import World
from tests.uccl_ep.holdings import Holdings
from tests.uccl_ep.survival.serving import MOST, groups_of, make, play, run, serve, serve_until_switched
from uccl_ep import Buffer, InvalidArgument, PeerLost, PeerTimeout, UcclEpError
from uccl_ep.survival.prepared import LEAVES, NOTHING, Prepared, disagreement, listed
from uccl_ep.survival.standby import Standby

HERE = Prepared(3, 3, 2, 1, 5, 4, 0)
WORLDS = [pytest.param(World(3), id="one node"), pytest.param(World(3, 1, "tcp"), id="a node each, tcp")]


def test_prepared_there_and_back() -> None:
    for one in (HERE, HERE._replace(size=NOTHING, rank=0), HERE._replace(size=LEAVES)):
        assert Prepared.of(one.as_text()) == one
    for wrong in ("", "1 2", "a b c d e f g", 7, HERE.as_text() + " 1", "1.5 2 3 4 5 6 7"):
        assert Prepared.of(wrong).size == NOTHING


def test_prepared_is_past_what_came_before() -> None:
    assert HERE._replace(throughput=3).is_past(HERE)
    assert not HERE.is_past(HERE) and not HERE.is_past(HERE._replace(barriers=2))
    assert not HERE._replace(dispatches=4, combines=2).is_past(HERE)
    assert not HERE._replace(steps=9).is_past(HERE)  # steps without a call are no evidence


def test_prepared_disagreement_names_who_prepared_what() -> None:
    said = {rank: HERE._replace(rank=rank) for rank in range(3)}
    assert disagreement(said, (), 1.0) == ""
    assert disagreement({**said, 1: HERE._replace(size=LEAVES, rank=0)}, (), 1.0) == ""
    assert disagreement(said, (5, 4), 2.5) == "ranks 4, 5 prepared no change within 2.5 s"
    calls = "3 low-latency dispatches, 3 combines, 2 throughput calls, 1 barriers"
    assert disagreement({**said, 1: HERE._replace(size=NOTHING, rank=0)}, (), 1.0) == (
        f"ranks 0, 2 prepared a group of 4 after {calls}; rank 1 prepared nothing after {calls}"
    )
    assert disagreement({**said, 2: said[2]._replace(size=3)}, (), 1.0) == (
        f"ranks 0, 1 prepared a group of 4 after {calls}; rank 2 prepared a group of 3 after {calls}"
    )
    assert "rank 0 prepared a group of 4 after 4 low" in disagreement(
        {**said, 0: said[0]._replace(dispatches=4)}, (), 1.0
    )
    assert disagreement({**said, 2: said[1]}, (), 1.0) == "ranks 1, 2 are to be rank 1"
    assert (listed({3}), listed({2, 1})) == ("rank 3", "ranks 1, 2")


def until_refused(buffer: Buffer, world: World, prepare: Callable[[int], Any]) -> tuple[int, str]:
    """Steps, each behind `prepare(its number)`, until switch_members() raises: before which step, and what."""
    for number in range(MOST):
        prepare(number)
        play(buffer, world, number)
        try:
            assert not buffer.switch_members()
        except UcclEpError as error:
            assert type(error) is UcclEpError
            return number, str(error)
    raise AssertionError("no error")


def go_on(buffer: Buffer, world: World, next_group: Any) -> None:
    """As before, and then to a next life."""
    play(buffer, world, 3000)
    buffer.prepare_members(next_group)
    serve_until_switched(buffer, world)
    serve(buffer, world)
    buffer.destroy()


@pytest.mark.mostly_slow(quick=2)
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("at, hears", [(None, True), (6, True), (6, False)], ids=["never", "later", "hears late"])
def test_prepared_before_different_steps(
    world: World, at: int | None, hears: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks 0 and 1 prepare before step 2, rank 2 before a later one or never. All call switch_members() after every
    step."""
    if not hears:
        monkeypatch.setattr(Standby, "is_missed", lambda life: False)
    held = Holdings()
    old, new, third = groups_of(3), groups_of(3), groups_of(3)

    def body(rank: int) -> tuple[int, str]:
        buffer = make(old[rank], world)

        def prepare(number: int) -> None:
            if number == (2 if rank < 2 else at):
                buffer.prepare_members(new[rank], timeout_s=30.0)

        found = until_refused(buffer, world, prepare)
        new[rank].leave()  # nobody waits in it any more
        go_on(buffer, world, third[rank])
        return found

    found = run(world, *(lambda r=r: body(r) for r in range(3)))
    assert found[0] == found[1] == found[2]
    where, text = found[0]
    assert where < MOST - 1
    assert "ranks 0, 1 prepared a group of 3 after 2 low-latency dispatches, 2 combines, 4 throughput calls" in text
    assert re.search(
        r"; rank 2 prepared (nothing|a group of 3) after ([3-9]) low-latency dispatches, \2 combines", text
    )
    held.assert_gone_back()


def test_prepared_before_different_steps_where_only_a_change_is_asked_for() -> None:
    """switch_members() is called while a change is under way, and not before: each raises as many steps after it has
    prepared, and nobody goes over by itself."""
    world = World(2)
    old, new, third = groups_of(2), groups_of(2), groups_of(2)

    def body(rank: int) -> tuple[int, str]:
        buffer = make(old[rank], world)
        for number in range(rank * 2):
            play(buffer, world, 4000 + number)
        buffer.prepare_members(new[rank], timeout_s=30.0)
        found = 0, ""
        for number in range(rank * 2, 2 * MOST):
            play(buffer, world, 4000 + number)
            try:
                if not found[1]:
                    assert not buffer.switch_members()
            except UcclEpError as error:
                found = number - rank * 2, str(error)
            if number >= 60:
                break
        go_on(buffer, world, third[rank])
        return found

    found = run(world, lambda: body(0), lambda: body(1))
    assert found[0] == found[1]
    assert "rank 0 prepared a group of 2 after 0 low-latency dispatches" in found[0][1]
    assert "; rank 1 prepared a group of 2 after 2 low-latency dispatches" in found[0][1]


def test_prepared_by_all_but_one_that_asks_for_no_switch() -> None:
    """It is given up at the deadline, stays a member, and takes part in the next change."""
    world = World(3, timeout_s=4.0)
    old, new, third = groups_of(3), groups_of(2), groups_of(3)
    over = threading.Barrier(3)

    def body(rank: int) -> str:
        buffer, text = make(old[rank], world), ""
        play(buffer, world, 0)
        if rank < 2:
            buffer.prepare_members(new[rank], timeout_s=1.0)
            with pytest.raises(UcclEpError, match="has failed") as caught:
                while not buffer.switch_members():
                    threading.Event().wait(0.005)
            text = str(caught.value)
        over.wait(60)
        assert buffer.switch_members() is False
        go_on(buffer, world, third[rank])
        return text

    found = run(world, *(lambda r=r: body(r) for r in range(3)))
    assert found[0] == found[1]
    assert re.search(r"stay as they are: rank [01]: rank 2 prepared no change within 4 s$", found[0])


def test_prepared_twice_is_refused_and_changes_nothing() -> None:
    world = World(2)
    old, new, other = groups_of(2), groups_of(2), groups_of(3)

    def body(rank: int) -> int:
        buffer = make(old[rank], world)
        buffer.prepare_members(new[rank])
        if rank == 1:
            with pytest.raises(InvalidArgument, match=r"a change of members is under way: switch_members\(\) ends it"):
                buffer.prepare_members(other[rank])
        at = serve_until_switched(buffer, world)
        assert buffer.group is new[rank]
        serve(buffer, world)
        buffer.destroy()
        return at

    found = run(world, lambda: body(0), lambda: body(1))
    assert found[0] == found[1]


def test_prepared_other_groups_are_refused_before_they_are_built() -> None:
    """Of another size; nobody waits for those that will never come."""
    world = World(3)
    old, new, other, third = groups_of(3), groups_of(3), groups_of(4), groups_of(3)

    def body(rank: int) -> tuple[int, str]:
        buffer = make(old[rank], world)

        def prepare(number: int) -> None:
            if number == 1:
                buffer.prepare_members(other[rank] if rank == 1 else new[rank], timeout_s=60.0)

        found = until_refused(buffer, world, prepare)
        other[rank].leave()
        new[rank].leave()
        go_on(buffer, world, third[rank])
        return found

    found = run(world, *(lambda r=r: body(r) for r in range(3)))
    assert found[0] == found[1] == found[2]
    assert "ranks 0, 2 prepared a group of 3 after 1 low" in found[0][1]
    assert "; rank 1 prepared a group of 4 after 1 low" in found[0][1]


def test_prepared_lives_that_are_apart_are_refused() -> None:
    """Two groups of one size, which joiners make whole: each rank could go over, but not to the same life."""
    world = World(2)
    old, new, other, third = groups_of(2), groups_of(2), groups_of(2), groups_of(2)

    def stays(rank: int) -> tuple[int, str]:
        buffer = make(old[rank], world)

        def prepare(number: int) -> None:
            if number == 1:
                buffer.prepare_members((new, other)[rank][rank])

        found = until_refused(buffer, world, prepare)
        go_on(buffer, world, third[rank])
        return found

    def joins(rank: int) -> None:
        buffer = make((other, new)[rank][rank], world)
        with pytest.raises((PeerLost, PeerTimeout)):
            serve(buffer, world)
        buffer.destroy()

    found = run(world, *(lambda r=r: stays(r) for r in range(2)), *(lambda r=r: joins(r) for r in range(2)))
    assert found[0] == found[1]
    assert found[0][1].endswith("stay as they are: rank 0 and rank 1 have built lives apart from each other")
