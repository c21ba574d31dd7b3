"""enable_shrink and real deaths: a killed rank is masked in place, by each survivor for itself, and no call fails."""

from __future__ import annotations

import signal

import pytest

from tests.end_to_end.world import World
from tests.faults.bodies import Doom
from tests.faults.fleet import Fleet
from tests.faults.lives import come_back, outlast
from tests.faults.test_lost_peers import SHARED_MEMORY, TCP, begin, slow
from tests.uccl_ep.proxies import eventually
from uccl_ep.membership.root_cause import is_stopped


@pytest.mark.parametrize(
    ("mode", "stage", "transport", "proxy"),
    [
        ("l", 0, TCP, "thread"),
        ("t", 0, SHARED_MEMORY, "process"),
        ("t", 2, TCP, "thread"),
        ("l", 2, SHARED_MEMORY, "thread"),
        slow("l", 1, TCP, "process"),
        slow("t", 1, TCP, "process"),
        slow("t", 3, SHARED_MEMORY, "thread"),
    ],
)
def test_absent_after_a_kill(mode: str, stage: int, transport: str, proxy: str) -> None:
    victim = 2
    survivors = [0, 1, 3]
    with Fleet(
        World(4, 2, transport, proxy=proxy), outlast, 2, mode, Doom(victim, signal.SIGKILL, stage=stage)
    ) as fleet:
        begin(fleet, 4)
        fleet.wait_for("doomed", [victim])
        for rank, (masks, seconds) in fleet.wait_for("went on", survivors).items():
            assert masks == [victim], (rank, masks)
            assert seconds < 10.0, (rank, seconds)  # of the round in which it happened
        for rank in survivors:
            assert fleet.join(rank) == 0


def test_absent_while_stopped() -> None:
    """A stopped rank neither takes nor gives; what is on its way to it holds nobody up for more than one deadline."""
    world = World(4, 2, TCP, timeout_s=2.0)
    with Fleet(world, outlast, 2, "l", Doom(1, signal.SIGSTOP, stage=1)) as fleet:
        begin(fleet, 4)
        fleet.wait_for("doomed", [1])
        for rank, (masks, _) in fleet.wait_for("went on", [0, 2, 3]).items():
            assert masks == [1], (rank, masks)
        fleet.signal(1, signal.SIGKILL)
        for rank in (0, 2, 3):
            assert fleet.join(rank) == 0


@pytest.mark.parametrize("inside", [False, True], ids=["between calls", "inside of a dispatch"])
@pytest.mark.parametrize(
    ("ranks", "per_node", "transport", "proxy"),
    [
        pytest.param(3, 0, SHARED_MEMORY, "thread", id="one node"),
        pytest.param(3, 1, TCP, "thread", id="a node each, tcp"),
        slow(4, 2, SHARED_MEMORY, "process"),
    ],
)
def test_absent_while_stopped_and_back_again(
    ranks: int, per_node: int, transport: str, proxy: str, inside: bool
) -> None:
    """A process that was stopped, masked and is woken takes part again, in the life in which it was stopped."""
    lost, others = 1, [r for r in range(ranks) if r != 1]
    world = World(ranks, per_node, transport, proxy=proxy, timeout_s=30.0)
    with Fleet(world, come_back, per_node, lost, inside) as fleet:
        begin(fleet, ranks)
        fleet.wait_for("ready", range(ranks))
        fleet.answer(lost)
        assert eventually(lambda: is_stopped(fleet.processes[lost].pid))
        for rank in others:
            fleet.answer(rank)
        fleet.wait_for("went on", others)
        fleet.signal(lost, signal.SIGCONT)
        woken = fleet.wait_for("awake", [lost])
        assert woken == {lost: others if inside else []}
        for rank in others:
            fleet.answer(rank)
        fleet.wait_for("asked", others)
        fleet.answer(lost)
        assert fleet.wait_for("whole again", range(ranks)) == {rank: [] for rank in range(ranks)}
        for rank in range(ranks):
            assert fleet.join(rank) == 0
