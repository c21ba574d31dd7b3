"""Pictures are drawn, of everything that a result may lack too."""

from __future__ import annotations

from pathlib import Path

import pytest

from uccl_ep.tools.bench.model.compare import CompareOptions, compare
from uccl_ep.tools.bench.model.growth import GrowthShape, fitted
from uccl_ep.tools.bench.model.memory import MemoryOptions, memory_table
from uccl_ep.tools.bench.model.plot import draw_bytes, draw_growth, draw_memory

PNG = b"\x89PNG"


def test_plot_bytes(tmp_path: Path) -> None:
    result = compare(CompareOptions(ranks=(8, 16), routings=("random", "skewed"), tokens=8, throughput_tokens=8))
    draw_bytes(result, tmp_path / "new" / "bytes.png")
    assert (tmp_path / "new" / "bytes.png").read_bytes().startswith(PNG)


def test_plot_memory(tmp_path: Path) -> None:
    draw_memory(memory_table(MemoryOptions(ranks=(8, 16))), tmp_path / "memory.svg")
    text = (tmp_path / "memory.svg").read_text()
    assert "<svg" in text


def test_plot_growth_with_and_without_measured(tmp_path: Path) -> None:
    columns = [{"x": 0.0, "y": 1.0}, {"x": 0.0, "y": 2.0}]
    entry = fitted("tokens", GrowthShape(), (16, 32), columns)
    for name, measured in (("one", []), ("two", [entry, entry])):
        path = tmp_path / f"{name}.png"
        draw_growth({"counted": [entry], "measured": measured}, path)
        assert path.read_bytes().startswith(PNG)


def test_plot_refuses_an_unknown_suffix(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="bmpx"):
        draw_memory(memory_table(MemoryOptions(ranks=(8,))), tmp_path / "memory.bmpx")
