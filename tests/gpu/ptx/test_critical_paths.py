"""The gate of launch shapes: no lane or warp does more than a GPU hides, by counters of executed PTX.

Counters depend on no machine.
"""

from __future__ import annotations

import pytest

from tests.gpu import critical_paths
from tests.gpu.critical_paths import (
    MOST_LANE16,
    MOST_UNEVEN,
    RANKS,
    findings,
    gpu_of,
    low_latency,
    table,
    throughput,
)
from tests.gpu.ptx import counting

pytestmark = [pytest.mark.compile, pytest.mark.timeout(300)]


@pytest.mark.parametrize("ranks_per_node", [0, 4], ids=["1 node of 8", "2 nodes of 4"])
def test_ptx_busiest_lane_of_low_latency(ranks_per_node: int, capfd: pytest.CaptureFixture[str]) -> None:
    with gpu_of(counting.open_driver, ranks_per_node) as driver:
        launches = low_latency(driver, counting.counts, calls=1)
    with capfd.disabled():
        print(f"\n{table(launches)}")
    assert not findings(launches, RANKS - ranks_per_node if ranks_per_node else 0)
    assert {launch.kernel for launch in launches} >= MOST_LANE16.keys()


@pytest.mark.parametrize(
    ("ranks", "ranks_per_node", "combine"),
    [(8, 4, "direct"), (16, 4, "direct"), (16, 8, "direct"), (16, 8, "node")],
    ids=str,
)
def test_ptx_host_reads_of_low_latency(
    ranks: int, ranks_per_node: int, combine: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In the second call staging rows are used again. How wide rows are changes nothing, nor do a GPU's other
    three quarters: if only two blocks asked, that would be beyond the limit."""
    monkeypatch.setenv("UCCL_EP_LOW_LATENCY_COMBINE", combine)
    monkeypatch.setattr(critical_paths, "HIDDEN", 512)
    monkeypatch.setattr(critical_paths, "RANKS", ranks)
    monkeypatch.setattr(critical_paths, "SMS", 132 * 8 // ranks // 4)
    with gpu_of(counting.open_driver, ranks_per_node) as driver:
        launches = low_latency(driver, counting.counts, tokens=16, calls=2)
    with capfd.disabled():
        print(f"\n{table(launches)}")
    assert not findings(launches, ranks - ranks_per_node)
    assert {launch.kernel for launch in launches} >= MOST_LANE16.keys()
    assert any(launch.kernel == "low_latency_combine_reduce" for launch in launches) == (combine == "node")


@pytest.mark.parametrize("ranks_per_node", [0, 4], ids=["1 node of 8", "2 nodes of 4"])
def test_ptx_busiest_warp_of_throughput(
    ranks_per_node: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two of the twelve channels of 4,096 tokens on 24 SMs: what a channel's warps do does not depend on the others."""
    monkeypatch.setattr(critical_paths, "HIDDEN", 256)
    with gpu_of(counting.open_driver, ranks_per_node) as driver:
        launches = throughput(driver, counting.counts, tokens=4096 * 2 // 12, sms=4)
    with capfd.disabled():
        print(f"\n{table(launches)}")
    assert not findings(launches, RANKS - ranks_per_node if ranks_per_node else 0)
    assert {launch.kernel for launch in launches} >= MOST_UNEVEN.keys()
