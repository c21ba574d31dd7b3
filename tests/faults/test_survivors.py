"""Ranks that die or stop while all work: the others recover() and go on, row by row as the reference with the mask."""

from __future__ import annotations

import multiprocessing
import signal
from typing import Any

import pytest

from tests.end_to_end.world import World
from tests.faults.bodies import Doom
from tests.faults.fleet import Body, Fleet, _member
from tests.faults.lives import outlive, rejoin
from tests.faults.test_lost_peers import SHARED_MEMORY, TCP, begin, slow

RECOVERED_WITHIN_S = 5.0


def check_recovered(fleet: Fleet, survivors: list[int], within_s: float = RECOVERED_WITHIN_S) -> None:
    for rank, (fault, members, seconds) in fleet.wait_for("recovered", survivors).items():
        assert members == survivors, (rank, members)
        assert fault.peer not in survivors, (rank, fault)
        assert seconds < within_s, (rank, seconds)


def check_end(fleet: Fleet, survivors: list[int]) -> None:
    for text in fleet.wait_for("went on", survivors).values():
        assert f"going on with rank(s) {', '.join(map(str, survivors))} after " in text
    for rank in survivors:
        fleet.answer(rank)
    fleet.wait_for("still going", survivors)
    for rank in survivors:
        assert fleet.join(rank) == 0


@pytest.mark.parametrize(
    ("victim", "mode", "stage", "transport"),
    [
        (3, "l", 0, TCP),
        (0, "t", 2, SHARED_MEMORY),
        (2, "l", 2, SHARED_MEMORY),
        (1, "t", 0, TCP),
        slow(0, "l", 1, TCP),
        slow(1, "l", 3, SHARED_MEMORY),
        slow(2, "t", 1, TCP),
        slow(3, "t", 3, SHARED_MEMORY),
    ],
)
def test_survivors_of_a_killed_rank(victim: int, mode: str, stage: int, transport: str) -> None:
    doom = Doom(victim, signal.SIGKILL, stage=stage)
    survivors = [rank for rank in range(4) if rank != victim]
    with Fleet(World(4, 2, transport), outlive, 2, mode, [doom]) as fleet:
        begin(fleet, 4)
        fleet.wait_for("doomed", [victim])
        check_recovered(fleet, survivors)
        check_end(fleet, survivors)


@pytest.mark.parametrize(
    ("mode", "ranks", "per_node"), [("l", 4, 0), slow("t", 4, 0), ("t", 4, 1), slow("l", 4, 1), ("t", 5, 3)]
)
def test_survivors_of_other_worlds(mode: str, ranks: int, per_node: int) -> None:
    """One node, a node each, uneven nodes."""
    victim = ranks - 1
    with Fleet(World(ranks, per_node, SHARED_MEMORY), outlive, per_node, mode, [Doom(victim, signal.SIGKILL)]) as fleet:
        begin(fleet, ranks)
        check_recovered(fleet, list(range(victim)))
        check_end(fleet, list(range(victim)))


@pytest.mark.parametrize("mode", ["l", "t"])
def test_survivors_of_two_losses_one_after_the_other(mode: str) -> None:
    """The second takes a whole node away."""
    dooms = [Doom(2, signal.SIGKILL, stage=1), Doom(3, signal.SIGKILL, stage=2)]
    with Fleet(World(4, 2, TCP), outlive, 2, mode, dooms) as fleet:
        begin(fleet, 4)
        check_recovered(fleet, [0, 1, 3])
        check_recovered(fleet, [0, 1])
        check_end(fleet, [0, 1])


@pytest.mark.parametrize(
    ("mode", "victims", "transport"),
    [
        ("l", (1, 2), TCP),
        ("t", (0, 1, 2), SHARED_MEMORY),
        slow("t", (0, 1), TCP),
        slow("t", (1, 2), SHARED_MEMORY),
        slow("l", (0, 2, 3), TCP),
    ],
)
def test_survivors_of_losses_at_once(mode: str, victims: tuple[int, ...], transport: str) -> None:
    """However few are left on a host: that the others have ended is certain there."""
    never = Doom(-1, signal.SIGKILL)
    survivors = [rank for rank in range(4) if rank not in victims]
    with Fleet(World(4, 2, transport), outlive, 2, mode, [never]) as fleet:
        begin(fleet, 4)
        for number in (signal.SIGSTOP, signal.SIGCONT):  # nobody goes on with one that is killed a moment later
            for rank in survivors:
                fleet.signal(rank, number)
            for rank in victims if number == signal.SIGSTOP else ():
                fleet.signal(rank, signal.SIGKILL)
        check_recovered(fleet, survivors)
        check_end(fleet, survivors)


@pytest.mark.parametrize(("mode", "proxy"), [("l", "thread"), ("t", "process")])
def test_survivors_of_a_stopped_rank_that_wakes_up(mode: str, proxy: str) -> None:
    """It is told that it was excluded, and what it still does reaches nobody."""
    doom = Doom(3, signal.SIGSTOP, stage=2)
    world = World(4, 2, TCP, proxy=proxy, timeout_s=2.0)
    with Fleet(world, outlive, 2, mode, [doom]) as fleet:
        begin(fleet, 4)
        check_recovered(fleet, [0, 1, 2], within_s=10.0)
        fleet.signal(3, signal.SIGCONT)
        excluded = fleet.wait_for("excluded", [3])[3]
        assert excluded.kind == "PeerLost" and "rank 3 was excluded: rank " in excluded.text
        first = fleet.wait_for("first", [3])[3]
        assert first.kind == "PeerLost" and "rank 3 was excluded: rank " in first.text
        check_end(fleet, [0, 1, 2])


def replace_rank(fleet: Fleet, rank: int, world: World, body: Body, *arguments: Any) -> None:
    """Starts a new process in the place of one that has ended."""
    context = multiprocessing.get_context("forkserver")
    here, there = context.Pipe()
    process = context.Process(target=_member, args=(rank, world.ranks, world, None, there, body, arguments))
    process.start()
    here.send(fleet.folder.name)
    there.close()
    fleet._pipes[rank].close()
    fleet._pipes[rank], fleet.processes[rank] = here, process


@pytest.mark.parametrize(("mode", "transport"), [("t", TCP), ("l", SHARED_MEMORY)])
def test_survivors_and_a_new_process_are_whole_again(mode: str, transport: str) -> None:
    world, doom = World(4, 2, transport), Doom(1, signal.SIGKILL, stage=1)
    with Fleet(world, rejoin, 2, mode, doom) as fleet:
        begin(fleet, 4)
        assert set(map(tuple, fleet.wait_for("recovered", [0, 2, 3]).values())) == {(0, 2, 3)}
        fleet.wait_for("waiting", [0, 2, 3])
        replace_rank(fleet, 1, world, rejoin, 2, mode, None)
        for rank in (0, 2, 3):
            fleet.answer(rank)
        assert set(map(tuple, fleet.wait_for("whole again", range(4)).values())) == {(0, 1, 2, 3)}
        for rank in range(4):
            assert fleet.join(rank) == 0
