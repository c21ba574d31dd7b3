"""The gate of launch shapes: no lane of a low-latency call does more than a GPU hides, by counters of executed PTX.

Counters depend on no machine. Throughput has no gate yet: one warp a channel sends.
"""

from __future__ import annotations

import pytest

from tests.gpu.critical_paths import MOST_LANE16, findings, gpu_of, low_latency, table
from tests.gpu.ptx import counting

pytestmark = [pytest.mark.compile, pytest.mark.timeout(300)]


@pytest.mark.parametrize("ranks_per_node", [0, 4], ids=["1 node of 8", "2 nodes of 4"])
def test_ptx_busiest_lane_of_low_latency(ranks_per_node: int, capfd: pytest.CaptureFixture[str]) -> None:
    with gpu_of(counting.open_driver, ranks_per_node) as driver:
        launches = low_latency(driver, counting.counts, calls=1)
    with capfd.disabled():
        print(f"\n{table(launches)}")
    assert not findings(launches)
    assert {launch.kernel for launch in launches} >= MOST_LANE16.keys()
