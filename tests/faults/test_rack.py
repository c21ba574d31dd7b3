"""A host of a rack is gone: its ranks share a node with those of other hosts, which see neither its processes nor the
memory of its host."""

from __future__ import annotations

import signal

import pytest

from tests.end_to_end.world import World
from tests.faults.fleet import Fleet, Place
from tests.faults.rack import serve
from tests.faults.test_lost_peers import begin

PLACES = [Place(f"host{rank // 2}") for rank in range(4)]


@pytest.mark.parametrize("shrink", [False, True], ids=["recover", "masks"])
def test_rack_goes_on_without_a_host_that_is_gone(shrink: bool) -> None:
    """Its end comes over the network, since nothing else tells; the timeout is far away."""
    with Fleet(World(4, timeout_s=40.0), serve, shrink, places=PLACES) as fleet:
        begin(fleet, 4)
        for rank in (2, 3):
            fleet.signal(rank, signal.SIGKILL)
        assert fleet.wait_for("goes on", [0, 1]) == {0: [2, 3], 1: [2, 3]}
        fleet.wait_for("went on", [0, 1])
        for rank in (0, 1):
            fleet.answer(rank)
        assert [fleet.join(rank) for rank in (0, 1)] == [0, 0]
