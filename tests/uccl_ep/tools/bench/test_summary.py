"""Sums by hand: slowest rank, ratios and their spread, shares of the limit, targets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from uccl_ep.tools.bench.limit import COPY_BYTES
from uccl_ep.tools.bench.options import BenchOptions
from uccl_ep.tools.bench.summary import percentile, slowest_rounds, spread, summarise, targets, where

OPTIONS = BenchOptions(ranks=2, ranks_per_node=2, tokens=10, hidden=512)


def report(ours: list[tuple[float, float]], gloo: list[tuple[float, float]], copies: list[float]) -> dict[str, object]:
    times = {"uccl_ep": [(*one, 0.25) for one in ours], "gloo": [(*one, 0.5) for one in gloo]}
    return {"times": times, "copies": copies, "output_rows": 15.0, "forms": {"gloo": "once per rank"}, "tried": {}}


REPORTS = [
    report([(1.0, 1.0), (2.0, 1.0)], [(2.0, 2.0), (9.0, 3.0)], [0.5, 0.25]),
    report([(0.5, 1.5), (1.0, 1.0)], [(1.0, 1.0), (1.0, 1.0)], []),
]


def test_bench_summary_takes_the_slowest_rank_of_each_phase() -> None:
    assert slowest_rounds(REPORTS, "uccl_ep") == {"dispatch": [1.0, 2.0], "combine": [1.5, 1.0], "both": [2.5, 3.0]}


def test_bench_summary_by_hand() -> None:
    found = summarise(OPTIONS, REPORTS)
    ours = found["sides"]["uccl_ep"]
    assert ours["both"]["median_ms"] == pytest.approx(2750.0) and ours["dispatch"]["median_ms"] == pytest.approx(1500.0)
    assert ours["ranks"][1]["combine"]["p99_ms"] == pytest.approx(1500.0)
    assert ours["cpu_ms"] == pytest.approx(500.0) and found["sides"]["gloo"]["cpu_ms"] == pytest.approx(1000.0)
    assert found["pairs"]["gloo"]["both"]["median"] == pytest.approx((4 / 2.5 + 12 / 3) / 2)
    limit = found["limit"]
    assert limit["memcpy_bytes_per_s"] == pytest.approx(COPY_BYTES / 0.375) and limit["memcpy_ranks_at_once"] == 1
    assert limit["bytes_read_and_written_of_a_phase"] == 50 * 1024
    seconds = 25 * 1024 / (COPY_BYTES / 0.375)
    assert limit["limit_ms"]["both"] == pytest.approx(2e3 * seconds)
    assert limit["share_of_limit"]["both"] == pytest.approx(2 * seconds / 2.75)


def test_bench_summary_adds_sockets_and_what_memcpy_still_moves() -> None:
    over_tcp = [{**one, "sockets": [0.5, 1.0, 0.25], "crossing_rows": 5.0} for one in REPORTS]
    over_tcp[1]["sockets"] = [0.25, 0.5, 0.75]
    found = summarise(OPTIONS, over_tcp)
    limit, crossing = found["limit"], 2 * 5 * 1024
    floor = limit["sockets"]
    assert floor["bytes_that_cross_in_a_phase"] == crossing
    assert floor["socket_ms"] == {"dispatch": 750.0, "combine": 750.0, "both": 1500.0}
    rest = (50 * 1024 - 2 * crossing) / 2 / limit["memcpy_bytes_per_s"]
    both = 2 * (0.75 + rest)
    assert floor["floor_ms"]["both"] == pytest.approx(both * 1e3)
    assert floor["share_of_floor"] == pytest.approx(both / 2.75)
    theirs, memcpy = found["sides"]["gloo"]["both"]["median_ms"], limit["limit_ms"]["both"]
    assert floor["at_best"] == {
        "gloo": pytest.approx(theirs / both / 1e3),
        "memcpy": pytest.approx(memcpy / both / 1e3),
    }
    aims = summarise(OPTIONS.shaped("v3"), over_tcp)
    assert [aim["at_best"]["measured"] for aim in aims["targets"]] == list(aims["limit"]["sockets"]["at_best"].values())
    assert "sockets" not in summarise(OPTIONS, REPORTS)["limit"]


def test_bench_targets_are_for_the_published_shape() -> None:
    assert summarise(OPTIONS, REPORTS)["targets"] == []
    assert len(summarise(OPTIONS.shaped("v3"), REPORTS)["targets"]) == 2
    for variant in ({"outputs": "private"}, {"combine": "direct"}):  # each side in its faster form
        assert summarise(replace(OPTIONS.shaped("v3"), **variant), REPORTS)["targets"] == []


def test_bench_percentile_is_a_value_that_was_measured() -> None:
    values = [float(v) for v in range(1, 101)]
    assert percentile(values, 0.5) == 51.0 and percentile(values, 0.99) == 100.0 and percentile([7.0], 0.99) == 7.0


def test_bench_spread_names_quartiles_and_extremes() -> None:
    found = spread([5.0, 1.0, 3.0, 2.0, 4.0])
    assert found == {"median": 3.0, "q25": 2.0, "q75": 4.0, "least": 1.0, "most": 5.0, "pairs": 5}


@pytest.mark.parametrize(("mode", "gloo", "openmpi"), [("throughput", 5.0, 2.0), ("low-latency", 3.0, 1.5)])
def test_bench_targets_are_met_from_the_figure_on(mode: str, gloo: float, openmpi: float) -> None:
    options = BenchOptions(mode=mode, ranks=4, ranks_per_node=2)
    pairs = {"gloo": {"both": {"median": gloo}}, "openmpi": {"both": {"median": openmpi - 0.01}}}
    found = targets(options, pairs, {"share_of_limit": {"both": 0.5}})
    assert [(t["measured"], t["met"]) for t in found] == [(gloo, True), (openmpi - 0.01, False), (0.5, True)]
    assert found[0]["where"] == f"{mode}, 4 ranks on 2 nodes" and where(OPTIONS) == "throughput, 2 ranks"
