"""Ranks that leave in good order: no fault for who needs nothing more, a quick one for who does; in any order."""

from __future__ import annotations

import pytest

from tests.end_to_end.world import World
from tests.faults.bodies import leave_early
from tests.faults.fleet import Fleet
from tests.faults.test_lost_peers import SHARED_MEMORY, SURVIVORS, TCP, VICTIM, begin, slow


@pytest.mark.parametrize("mode", ["l", "t"])
@pytest.mark.parametrize(
    ("transport", "proxy"),
    [(TCP, "thread"), slow(TCP, "process"), slow(SHARED_MEMORY, "thread"), (SHARED_MEMORY, "process")],
)
def test_goodbye_is_no_fault_until_the_rank_is_needed(transport: str, mode: str, proxy: str) -> None:
    with Fleet(World(4, 2, transport, proxy=proxy), leave_early, 2, mode, VICTIM) as fleet:
        begin(fleet, 4)
        fleet.wait_for("finished", SURVIVORS)
        assert fleet.join(VICTIM) == 0
        for rank in SURVIVORS:
            fleet.answer(rank)
        for rank, fault in fleet.wait_for("alone", SURVIVORS).items():
            assert fault is not None and (fault.kind, fault.peer) == ("PeerLost", VICTIM), (rank, fault)
        for rank, seconds in fleet.wait_for("waited", SURVIVORS).items():
            assert seconds < 8.0, f"rank {rank} waited {seconds:.1f} s for a rank that had left"
        for rank in (1, 2, 0):
            fleet.answer(rank)
            fleet.wait_for("destroyed", [rank])
            assert fleet.join(rank) == 0
