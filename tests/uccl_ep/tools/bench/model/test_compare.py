"""The table's rows, its targets, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from uccl_ep.errors import InvalidArgument
from uccl_ep.tools.bench.model.compare import TARGET, CompareOptions, compare

SMALL = CompareOptions(ranks=(8, 16), modes=("low-latency", "throughput"), routings=("random",), tokens=16)


def test_compare_has_a_row_for_each_and_ratios_of_what_it_shows() -> None:
    result = compare(replace(SMALL, throughput_tokens=32))
    assert [(r["mode"], r["ranks"]) for r in result["rows"]] == [
        ("low-latency", 8), ("low-latency", 16), ("throughput", 8), ("throughput", 16),
    ]  # fmt: skip
    alone, low, _, high = result["rows"]
    assert alone["bytes_ratio"] is None and alone["nodes"] == 1
    for row in (low, high):
        sums = {side: sum(row["per_token"][f"{side}{p}"]["bytes"] for p in ("dispatch", "combine"))
                for side in ("", "upstream_")}  # fmt: skip
        assert row["bytes_ratio"] == pytest.approx(sums[""] / sums["upstream_"])
    assert set(low["choice"]) == {"dispatch", "combine"} and "choice" not in high
    assert low["bytes_ratio_node"] < low["bytes_ratio"] < 1
    assert 0.99 < high["bytes_ratio"] < 1.01  # both send a token once a node
    json.dumps(result)


def test_compare_target_of_32_ranks_is_missed_by_default_and_met_by_node() -> None:
    result = compare(CompareOptions(ranks=(32,), modes=("low-latency",), routings=("random",)))
    direct, node = result["targets"]
    assert direct["wanted"] == TARGET == node["wanted"] and not direct["at_least"]
    assert "COMBINE=direct" in direct["name"] and "COMBINE=node" in node["name"]
    # 6 of 8 choices leave the node: direct combine sends as much as upstream's; a token visits 2.7 other nodes.
    assert direct["measured"] == pytest.approx(0.814, abs=0.01) and not direct["met"]
    assert node["measured"] == pytest.approx(0.453, abs=0.01) and node["met"]
    combine = result["rows"][0]["per_token"]
    assert combine["combine"]["bytes"] == pytest.approx(combine["upstream_combine"]["bytes"], rel=1e-3)


def test_compare_says_nothing_of_targets_of_other_shapes() -> None:
    result = compare(CompareOptions(ranks=(32,), modes=("low-latency",), routings=("random",), tokens=4, topk=4))
    assert result["targets"] == []


def test_compare_pads_experts_that_ranks_cannot_share() -> None:
    assert [CompareOptions(experts=n).num_experts(r) for n, r in ((256, 32), (288, 64), (256, 512))] == [256, 320, 512]


@pytest.mark.parametrize("changes, named", [
    ({"modes": ("fast",)}, "--mode"), ({"routings": ("x",)}, "--routing"), ({"network": "modem"}, "--network"),
    ({"row_format": "nvfp4"}, "--format"), ({"ranks": (0,)}, "--ranks"), ({"tokens": 0}, "--tokens"),
    ({"topk": 33}, "--topk"), ({"hidden": 100}, "--hidden"), ({"ranks_per_node": 0}, "--ranks-per-node"),
])  # fmt: skip
def test_compare_refuses(changes: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        compare(replace(SMALL, **changes))  # type: ignore[arg-type]
