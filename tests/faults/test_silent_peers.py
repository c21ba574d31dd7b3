"""A rank that is stopped: the others' waits end at the deadline and say who, where, what was due and what was seen."""

from __future__ import annotations

import signal

import pytest

from tests.end_to_end.world import World
from tests.faults.bodies import Doom, barriers, rounds
from tests.faults.fleet import Fleet
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
