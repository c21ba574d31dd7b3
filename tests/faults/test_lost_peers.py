"""kill -9 of a rank, or of its proxy: every survivor raises PeerLost with its name within 2 s, and nothing is left."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from tests.end_to_end.world import World
from tests.faults.bodies import Doom, Fault, barriers_under_watch, rounds
from tests.faults.fleet import Fleet, Place

WITHIN_S = 2.0
TCP, SHARED_MEMORY = "tcp", "shared_memory"
# Kill rank 3 of nodes (0, 1) and (2, 3): rank 2 is its node peer, 0 and 1 are remote.
VICTIM, SURVIVORS = 3, (0, 1, 2)

# A survivor may hear of the death in a wait, or at its next call.
PHASES = {"l": ("dispatch", "combine"), "t": ("dispatch", "combine", "count exchange", "staging")}


def slow(*values: Any) -> Any:
    """A parameter set that `make test` leaves to `make test-slow`: each of these takes seconds."""
    return pytest.param(*values, marks=pytest.mark.slow)


def begin(fleet: Fleet, ranks: int) -> None:
    """Lets the ranks go once all have started."""
    fleet.wait_for("started", range(ranks))
    fleet.remember()
    for rank in range(ranks):
        fleet.answer(rank)


def check_survivors(fleet: Fleet, killed_at: float, mode: str) -> dict[int, Fault]:
    faults = fleet.wait_for("fault", SURVIVORS)
    for rank, fault in faults.items():
        assert (fault.kind, fault.peer) == ("PeerLost", VICTIM), (rank, fault)
        assert f"rank {VICTIM} (host " in fault.text and f"reported by rank {rank}" in fault.text
        assert fault.phase is not None and any(words in fault.phase for words in PHASES[mode]), (rank, fault)
        assert fault.at - killed_at < WITHIN_S, (rank, fault, fault.at - killed_at)
    for rank, fault in fleet.wait_for("again", SURVIVORS).items():
        assert fault is not None and fault.peer == VICTIM, f"rank {rank} went on after its fault"
    for rank, seconds in fleet.wait_for("destroyed", SURVIVORS).items():
        assert seconds < 4.0, f"rank {rank} took {seconds:.1f} s to destroy its buffer"
    for rank in SURVIVORS:
        assert fleet.join(rank) == 0
    return faults


@pytest.mark.parametrize("transport", [TCP, slow(SHARED_MEMORY)])
@pytest.mark.parametrize(("mode", "stage"), [("l", 0), ("l", 2), ("t", 0), ("t", 2)])
def test_lost_rank_ends_every_survivor(transport: str, mode: str, stage: int) -> None:
    doom = Doom(VICTIM, signal.SIGKILL, stage=stage)
    with Fleet(World(4, 2, transport), rounds, 2, mode, doom) as fleet:
        begin(fleet, 4)
        killed_at = fleet.wait_for("doomed", [VICTIM])[VICTIM]
        check_survivors(fleet, killed_at, mode)


@pytest.mark.parametrize(
    ("mode", "transport"), [("l", SHARED_MEMORY), ("t", TCP), slow("l", TCP), slow("t", SHARED_MEMORY)]
)
def test_lost_rank_at_any_moment(transport: str, mode: str) -> None:
    """Killed from outside while all ranks work as fast as they can: somewhere inside a kernel, or between two."""
    with Fleet(World(4, 2, transport), rounds, 2, mode) as fleet:
        begin(fleet, 4)
        fleet.wait_for("working", range(4))
        killed_at = fleet.signal(VICTIM, signal.SIGKILL)
        check_survivors(fleet, killed_at, mode)


def test_lost_rank_on_a_single_node() -> None:
    with Fleet(World(4, 0), rounds, 0, "t", Doom(VICTIM, signal.SIGKILL, stage=1)) as fleet:
        begin(fleet, 4)
        check_survivors(fleet, fleet.wait_for("doomed", [VICTIM])[VICTIM], "t")


@pytest.mark.parametrize(
    ("mode", "transport"), [("l", TCP), ("t", SHARED_MEMORY), slow("t", TCP), slow("l", SHARED_MEMORY)]
)
def test_lost_proxy_process_is_a_lost_rank(transport: str, mode: str) -> None:
    with Fleet(World(4, 2, transport, proxy="process"), rounds, 2, mode) as fleet:
        begin(fleet, 4)
        fleet.wait_for("working", range(4))
        (proxy,) = fleet.children(VICTIM)
        killed_at = time.monotonic()
        os.kill(proxy.pid, signal.SIGKILL)
        own = fleet.wait_for("fault", [VICTIM])[VICTIM]
        assert own.kind == "TransportError" and "proxy process has ended" in own.text, own
        assert own.at - killed_at < WITHIN_S
        check_survivors(fleet, killed_at, mode)


@pytest.mark.parametrize("transport", [slow(TCP), SHARED_MEMORY])
def test_lost_rank_takes_its_proxy_process_along(transport: str) -> None:
    doom = Doom(VICTIM, signal.SIGKILL, stage=1)
    with Fleet(World(4, 2, transport, proxy="process"), rounds, 2, "l", doom) as fleet:
        begin(fleet, 4)
        check_survivors(fleet, fleet.wait_for("doomed", [VICTIM])[VICTIM], "l")


def test_lost_rank_of_another_host_whose_network_says_nothing() -> None:
    """As a NIC that sends again for half a minute: the victim's proxy is stopped, so its connections stay as they are.

    Rank 0 watches rank 2 for its host; rank 1 has no connection to it but the proxy's.
    """
    places = [Place("a"), Place("a"), Place("b")]
    with Fleet(World(3, 0, TCP, proxy="process"), barriers_under_watch, 2, places=places) as fleet:
        begin(fleet, 3)
        fleet.wait_for("watched", [0])
        (proxy,) = fleet.children(2)
        proxy.suspend()
        killed_at = fleet.signal(2, signal.SIGKILL)
        for rank, fault in fleet.wait_for("fault", (0, 1)).items():
            assert (fault.kind, fault.peer) == ("PeerLost", 2), (rank, fault)
            assert fault.at - killed_at < WITHIN_S, (rank, fault)
        proxy.kill()
