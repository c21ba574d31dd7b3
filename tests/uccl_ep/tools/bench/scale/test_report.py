"""Tables: every published row with its error, marks, and the word "simulated" on all of them."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from uccl_ep.tools.bench.scale.report import NOTE, calibration_tables, show_scale


def sample() -> dict[str, Any]:
    """A result with one of everything."""
    row = {
        "platform": "p5en", "mode": "low-latency", "ranks": 16, "phase": "dispatch", "format": "fp8", "batched": False,
        "of": "table", "published_us": 200.0, "simulated_us": 210.0, "error": 0.05, "fitted": True, "within": True,
    }  # fmt: skip
    outside = {
        **row,
        "ranks": 24,
        "simulated_us": 300.0,
        "error": 0.5,
        "fitted": False,
        "within": False,
        "batched": True,
    }
    ratio = {"platform": "p5en", "mode": "low-latency", "ranks": 16, "upstream_us": 500.0, "ours_us": 400.0,
             "ours_ratio": 0.8, "node_us": 250.0, "node_ratio": 0.5}  # fmt: skip
    plain = {key: value for key, value in ratio.items() if "node" not in key} | {"mode": "throughput"}
    disturbed = {
        "platform": "p5en", "mode": "low-latency", "ranks": 16, "condition": "slow rail", "side": "ours", "us": 700.0,
        "times_healthy": 1.75, "phase": "combine", "cost_us": 300.0, "affected_us": 290.0, "others_us": 120.0,
        "others_delayed": 0.4, "blamed": 0.25,
    }  # fmt: skip
    return {
        "options": {"platforms": ["p5en"]}, "constants": {"p5en": {"gpu.start_us": 2.6}},
        "calibration": [row, outside], "ratios": [ratio, plain], "disturbances": [disturbed],
        "harness": [
            {"job": "decode", "ranks": 32, "format": "fp8", "upstream_us": 795.0, "error": 0.02, "ours_us": 573.0,
             "published": {"DeepEP V1": 1557, "DeepEP V2": 836, "UCCL": 776}, "mended_us": 560.0, "node_us": 447.0,
             "best": "UCCL", "ratio": 0.58},
        ],
        "summary": [{"rows": "table, fitted", "count": 1, "within": 1, "median_error": 0.05}],
    }  # fmt: skip


def printed(result: dict[str, Any]) -> str:
    text = io.StringIO()
    show_scale(result, Console(file=text, width=80))
    return text.getvalue()


def test_report_shows_everything() -> None:
    text = printed(sample())
    for words in ("+5.0%", "fitted", "OUTSIDE", "1 of 1 within 20%", "250 (0.50)", "slow rail", "+290",
                  "gpu.start_us 2.6", "batched", "1,557", "795 +2%", "0.58"):  # fmt: skip
        assert words in text, (words, text)
    assert text.count("simulated: ") == 4 and " ".join(text.split()).count(NOTE) == 2
    assert "\u2026" not in text  # nothing is cut off on 80 columns


def test_report_without_disturbances() -> None:
    assert "disturbances on" not in printed({**sample(), "disturbances": []})


def test_report_calibration_table_has_a_line_for_each_row() -> None:
    assert [table.row_count for table in calibration_tables(sample()["calibration"])] == [2]
