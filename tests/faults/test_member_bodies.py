"""A process is killed in a change of members: those that are left get one outcome at one step, and go on exactly."""

from __future__ import annotations

import signal

import pytest
from torch._C._distributed_c10d import TCPStore

from tests.end_to_end.world import World
from tests.faults.fleet import Fleet
from tests.faults.member_bodies import DUE, EXCHANGES, JOINED, KNOWS, POINTS, PREPARED, SWITCHED, Killing, changes

PRESENT = 3
SHARED_MEMORY, TCP = ("shared_memory", 0), ("tcp", 2)
FAILS, SWITCHES = (PREPARED, *EXCHANGES), (KNOWS, DUE, SWITCHED, JOINED)  # else either, on all alike
QUICK = {(1, EXCHANGES[2], TCP), (0, DUE, SHARED_MEMORY), (PRESENT, EXCHANGES[1], SHARED_MEMORY)}


def cases() -> list[object]:
    every = {0: POINTS, 1: POINTS, PRESENT: (*EXCHANGES, JOINED)}
    made = [(rank, point, net) for net in (SHARED_MEMORY, TCP) for rank, points in every.items() for point in points]
    marks = {True: (), False: (pytest.mark.slow,)}
    return [pytest.param(*one, marks=marks[one in QUICK], id=f"{one[0]}-{one[1]}-{one[2][0]}") for one in made]


@pytest.mark.parametrize(("rank", "point", "network"), cases())
def test_members_go_on_when_a_process_is_killed(rank: int, point: str, network: tuple[str, int]) -> None:
    """Rank PRESENT joins, the others are there; one of them is killed at the point."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    world = World(PRESENT + 1, network[1], network[0], timeout_s=30.0)
    killing = Killing(PRESENT, rank, point, store.port, 5.0 if point in FAILS else 20.0)
    stay = [r for r in range(PRESENT) if r != rank]
    with Fleet(world, changes, world, killing) as fleet:
        fleet.wait_for("started", range(PRESENT + 1))
        fleet.remember()
        for r in (PRESENT, *range(PRESENT)):
            fleet.answer(r)
        told = fleet.wait_for("went on", stay)
        assert len(set(map(str, told.values()))) == 1, told
        how, _, size, lost = told[stay[0]]
        assert size == PRESENT + (how == "") and lost == ([rank] if rank < size else [])
        assert (how == "") if point in SWITCHES else (how != "" or point not in FAILS)
        assert not how or "the change of members has failed, and its ranks stay as they are: rank " in how
        assert fleet.join(rank) == -signal.SIGKILL
        if rank != PRESENT and how == "":
            assert fleet.wait_for("went on", [PRESENT])[PRESENT][2:] == (size, lost)
            fleet.answer(PRESENT)
        for r in stay:
            fleet.answer(r)
        for r in {*range(PRESENT + 1)} - {rank} if how == "" else stay:
            assert fleet.join(r) == 0
