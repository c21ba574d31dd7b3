"""What the tables say, from small results."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from uccl_ep.tools.bench.model.compare import CompareOptions, compare
from uccl_ep.tools.bench.model.growth import GrowthShape, fitted
from uccl_ep.tools.bench.model.memory import MemoryOptions, memory_table
from uccl_ep.tools.bench.model.report import show_bytes, show_growth, show_memory


def shown(show: Any, result: dict[str, Any], width: int = 250) -> str:
    text = io.StringIO()
    show(result, Console(file=text, width=width))
    return text.getvalue()


def test_report_bytes_shows_the_choice_and_the_target() -> None:
    result = compare(CompareOptions(ranks=(8, 32), routings=("random",), throughput_tokens=16))
    text = shown(show_bytes, result)
    assert "8 ranks are one node: nothing crosses" in text and "why, at 32 ranks, random routing, on cx7" in text
    assert "combine: node, since its bytes take" in text
    assert "NOT MET: low latency, EP32 (4 x 8), top-8 of 256, random routing: wire bytes" in text
    assert "COMBINE=node" in text and "equal by design" in text
    low = result["rows"][1]
    assert f"{low['bytes_ratio']:.2f}" in text and f"{low['per_token']['combine']['bytes'] / 1e3:.1f} / " in text


def test_report_tables_fit_into_eighty_columns() -> None:
    result = compare(CompareOptions(ranks=(64,), routings=("group-limited",), tokens=8, throughput_tokens=8))
    text = shown(show_bytes, result, 80) + shown(show_memory, memory_table(MemoryOptions(ranks=(512,))), 80)
    assert "\N{HORIZONTAL ELLIPSIS}" not in text  # no cell is cut
    assert "group-limited" in text and "1,820.0" in text


def test_report_bytes_of_one_mode_only() -> None:
    text = shown(show_bytes, compare(CompareOptions(ranks=(16,), modes=("throughput",), throughput_tokens=16)))
    assert "throughput, ours / upstream's" in text and "low-latency" not in text and "why, at" not in text


def test_report_memory_shows_bytes_and_verdicts() -> None:
    text = shown(show_memory, memory_table(MemoryOptions(ranks=(8,), experts=(288,))))
    assert "115.6" in text and "0.056" in text
    assert "met: low latency, 8 ranks, 288 experts: memory of a rank over upstream's: 0.05648" in text


def test_report_growth_shows_units_and_reasons_once() -> None:
    first = {"a bytes": 2048.0, "b bytes": 1.0, "a messages": 3.0, "a time": 0.001}
    last = {"a bytes": 8192.0, "b bytes": 9.0, "a messages": 3.0, "a time": 0.004}
    result = {"counted": [fitted("tokens", GrowthShape(), (16, 32), [first, last])], "measured": []}
    text = shown(show_growth, {**result, "machine": {"cores": 2, "cpu": "a processor", "load_1min": 0.5}})
    assert "measured on 2 cores of a processor, load 0.5" in text
    assert "measured on" not in shown(show_growth, result)
    assert "2 KiB" in text and "8 KiB" in text and "4.00 ms" in text and "2.00" in text
    assert text.count("worse than linear (1)") == 3 and text.count("(1) unexplained") == 1
    assert "does not grow" in text and "hidden 7168" in text
