"""Testbeds are found by name, and say what can be said of all of them."""

from __future__ import annotations

import pytest

from uccl_ep.errors import InvalidArgument
from uccl_ep.tools.bench.scale.platforms import PLATFORMS, platform
from uccl_ep.tools.bench.scale.published import ROWS


def test_platforms_by_name() -> None:
    assert platform("p5en").nic.count == 2
    with pytest.raises(InvalidArgument, match="p5en | p6-b200"):
        platform("p4d")


def test_platforms_every_published_row_has_its_testbed_and_the_other_way_round() -> None:
    assert {row.platform for row in ROWS} == set(PLATFORMS)


@pytest.mark.parametrize("name", PLATFORMS)
def test_platforms_stay_below_the_line(name: str) -> None:
    one = PLATFORMS[name]
    line = 25.0 if "200G" in one.nic.name else 50.0
    assert 0 < one.nic.gb_per_s < line
    assert one.nic.ordered != one.efa or name == "gh200-cxi"  # EFA keeps no order, RC does
    assert 0 < one.nic.congested_share <= 1 and one.threads % one.nic.count == 0
    assert one.gpu.node_gb_per_s < one.gpu.memory_gb_per_s
