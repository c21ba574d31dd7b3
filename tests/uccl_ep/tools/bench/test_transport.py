"""Summing up the comparison of networks, its verdict, and a small run of the whole."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from uccl_ep.tools.bench.transport import compare, run_transport, summarise
from uccl_ep.tools.bench.transport_options import TransportOptions

OPTIONS = TransportOptions(sizes=(8, 1000), rounds=3, most_writes=100, round_trips=10)


def test_bench_transport_summary_is_of_medians() -> None:
    times = {"tcp": {8: [(1.0, 1.0), (0.5, 3.0), (2.0, 2.0)]}}
    row = summarise(OPTIONS, times)["tcp"]["8"]
    assert row["writes_per_s"] == pytest.approx(100.0)
    assert row["bytes_per_s"] == pytest.approx(800.0)
    assert row["round_trip_us"] == pytest.approx(2.0 / 10 * 1e6)
    assert row["rounds_writes_per_s"] == pytest.approx([100.0, 200.0, 50.0])


def test_bench_transport_verdict_counts_rates_and_round_trips() -> None:
    ours = {8: [(1.0, 1.0)] * 3, 1000: [(1.0, 4.0)] * 3}
    theirs = {8: [(10.0, 2.0)] * 3, 1000: [(0.5, 1.0)] * 3}
    verdict = compare(summarise(OPTIONS, {"tcp": ours, "libfabric tcp": theirs}))
    assert verdict is not None
    assert verdict["ours_over_libfabric"]["8"] == {"rate": pytest.approx(10.0), "round_trip": pytest.approx(2.0)}
    assert verdict["ours_over_libfabric"]["1000"] == {"rate": pytest.approx(0.5), "round_trip": pytest.approx(0.25)}
    assert (verdict["won_by_ours"], verdict["comparisons"], verdict["default"]) == (2, 4, "tcp")  # a tie is ours
    turned = compare(summarise(OPTIONS, {"tcp": {8: [(2.0, 2.0)]}, "libfabric tcp": {8: [(1.0, 1.0)]}}))
    assert turned is not None and turned["default"] == "libfabric tcp" and turned["won_by_ours"] == 0


def test_bench_transport_no_verdict_without_both() -> None:
    assert compare(summarise(OPTIONS, {"tcp": {8: [(1.0, 1.0)]}})) is None


@pytest.mark.timeout(180)
def test_bench_transport_whole(tmp_path: Path) -> None:
    out = tmp_path / "results" / "transport.json"
    text = io.StringIO()
    options = TransportOptions(sizes=(8, 7168), rounds=1, megabytes=1, most_writes=500)
    result = run_transport(options, out, False, Console(file=text, width=160))
    assert json.loads(out.read_text()) == json.loads(json.dumps(result))
    measured, absent = set(result["networks"]), set(result["absent"])
    assert measured | absent == set(options.networks) and {"shared_memory", "tcp"} <= measured
    assert all("libfabric" in why for why in result["absent"].values())
    printed = text.getvalue()
    assert "shared_memory" in printed and "7,168" in printed
    if not absent:
        assert "Ours wins" in printed and result["tcp_or_libfabric"]["comparisons"] == 4
