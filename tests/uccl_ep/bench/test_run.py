"""Summing up a measurement, and a whole small one (which also runs worker.py, ours.py and gloo.py)."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from uccl_ep.bench.options import BenchOptions
from uccl_ep.bench.run import percentile, run_bench, summarise
from uccl_ep.errors import UcclEpError


def test_bench_summary_takes_the_slowest_rank_of_each_round_and_the_median_of_pairs() -> None:
    per_rank = [
        {"times": {"uccl_ep": [(1.0, 1.0), (2.0, 1.0)], "gloo all_to_all": [(2.0, 2.0), (9.0, 3.0)]}},
        {"times": {"uccl_ep": [(0.5, 1.5), (1.0, 1.0)], "gloo all_to_all": [(1.0, 1.0), (1.0, 1.0)]}},
    ]
    summary = summarise(per_rank)
    assert summary["uccl_ep"]["both"]["median_ms"] == pytest.approx(2500.0)  # rounds: 2 s and 3 s
    assert summary["uccl_ep"]["combine"]["median_ms"] == pytest.approx(1250.0)
    assert summary["speedup"] == {"median_of_pairs": pytest.approx(3.0), "pairs": 2}  # 4/2 and 12/3


def test_bench_percentile_is_a_value_that_was_measured() -> None:
    values = [float(v) for v in range(1, 101)]
    assert percentile(values, 0.5) == 51.0 and percentile(values, 0.99) == 100.0 and percentile([7.0], 0.99) == 7.0


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mode", ["throughput", "low-latency"])
def test_bench_measures_checks_and_writes_json(mode: str, tmp_path: Path) -> None:
    options = BenchOptions(
        mode=mode, ranks=2, ranks_per_node=1, tokens=16, hidden=128, topk=2, experts=4, rounds=2, transport="tcp"
    )
    text = io.StringIO()
    out = tmp_path / "results" / "one.json"
    result = run_bench(options, out, False, Console(file=text, width=200))
    assert json.loads(out.read_text()) == result
    assert result["paths"] == ["load/store", "tcp"] and result["proxy_writes"] > 0 and result["proxy_bytes"] > 0
    assert result["speedup"]["pairs"] == 2 and "times gloo's speed" in text.getvalue()


@pytest.mark.timeout(120)
def test_bench_reports_the_rank_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCCL_EP_PROXY_THREADS", "many")
    options = BenchOptions(ranks=2, ranks_per_node=1, tokens=4, hidden=128, topk=2, experts=4, rounds=1)
    with pytest.raises(UcclEpError, match="rank 0: .*UCCL_EP_PROXY_THREADS"):
        run_bench(options, None, False, Console(file=io.StringIO()))
