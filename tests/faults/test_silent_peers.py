"""A rank that is stopped: the others' waits end at the deadline and say who, where, what was due and what was seen."""

from __future__ import annotations

import signal

import pytest

from tests.end_to_end.world import World
from tests.faults.bodies import Doom, barrier_after_a_send, barriers, rounds
from tests.faults.fleet import Fleet, Place
from tests.faults.test_lost_peers import SHARED_MEMORY, SURVIVORS, TCP, VICTIM, begin, slow

TIMEOUT_S = 2.0


def check_timeouts(fleet: Fleet, words: str) -> None:
    stopped_at = fleet.wait_for("doomed", [VICTIM])[VICTIM]
    faults = fleet.wait_for("fault", SURVIVORS)
    fleet.signal(VICTIM, signal.SIGKILL)
    for rank, fault in faults.items():
        assert (fault.kind, fault.peer) == ("PeerTimeout", VICTIM), (rank, fault)
        assert fault.phase is not None and words in fault.phase, (rank, fault)
        assert fault.seen is not None and (fault.expected is None or fault.seen < fault.expected), (rank, fault)
        assert "arrivals" in fault.text and f"rank {VICTIM} (host " in fault.text and "waited " in fault.text
        assert TIMEOUT_S * 0.5 < fault.at - stopped_at < TIMEOUT_S + 6.0, (rank, fault.at - stopped_at)


@pytest.mark.parametrize("transport", [TCP, slow(SHARED_MEMORY)])
@pytest.mark.parametrize(("mode", "stage", "words"), [("l", 0, "dispatch"), ("l", 2, "combine"), ("t", 0, "count")])
def test_silent_rank_is_named_with_phase_and_arrivals(transport: str, mode: str, stage: int, words: str) -> None:
    doom = Doom(VICTIM, signal.SIGSTOP, stage=stage)
    with Fleet(World(4, 2, transport, timeout_s=TIMEOUT_S), rounds, 2, mode, doom) as fleet:
        begin(fleet, 4)
        check_timeouts(fleet, words)


def test_silent_rank_in_a_barrier() -> None:
    doom = Doom(VICTIM, signal.SIGSTOP)
    with Fleet(World(4, 2, TCP, timeout_s=TIMEOUT_S), barriers, 2, doom) as fleet:
        begin(fleet, 4)
        check_timeouts(fleet, "barrier")


def test_silent_proxy_in_a_barrier_behind_rows_that_it_does_not_take() -> None:
    """What a rank has sent must have arrived before it enters a barrier."""
    world = World(4, 1, TCP, proxy="process", timeout_s=TIMEOUT_S)
    apart = [Place(f"host of node {rank}") for rank in range(4)]
    with Fleet(world, barrier_after_a_send, 1, "l", VICTIM, places=apart) as fleet:
        begin(fleet, 4)
        fleet.wait_for("delivered", range(4))
        (proxy,) = fleet.children(VICTIM)
        proxy.suspend()
        for rank in range(4):
            fleet.answer(rank)
        for rank, fault in fleet.wait_for("fault", range(4)).items():
            if rank == VICTIM:
                assert fault.kind == "TransportError", fault
                continue
            assert (fault.kind, fault.peer, fault.phase) == ("PeerTimeout", VICTIM, "a barrier (send)"), (rank, fault)
            assert "to it did not arrive" in fault.text and "last seen" in fault.text, (rank, fault)
        proxy.resume()
        for rank in range(4):
            fleet.answer(rank)
        for rank in range(4):
            assert fleet.join(rank) == 0
