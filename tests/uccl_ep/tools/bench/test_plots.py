"""Pictures: one a mode and one of the ring, also where a side was measured in some runs only."""

from __future__ import annotations

from pathlib import Path

from tests.uccl_ep.tools.bench.sample import peers_result, ring_result
from uccl_ep.tools.bench.plots import draw

PNG = b"\x89PNG\r\n\x1a\n"


def test_bench_plots_draw_what_is_there(tmp_path: Path) -> None:
    lone = peers_result("low-latency", 8, 8)
    more = peers_result("low-latency", 2, 2)
    more["sides"]["openmpi"], more["pairs"]["openmpi"] = more["sides"]["gloo"], more["pairs"]["gloo"]
    written = draw([lone, more, peers_result(), ring_result(), {"benchmark": "memory"}], tmp_path / "new")
    assert [path.name for path in written] == ["peers-throughput.png", "peers-low-latency.png", "ring.png"]
    assert all(path.read_bytes().startswith(PNG) for path in written)


def test_bench_plots_leave_out_what_another_file_shows_in_our_faster_form(tmp_path: Path) -> None:
    for name, value in (("outputs", "private"), ("combine", "direct")):
        variant = peers_result()
        variant["options"][name] = value
        assert draw([variant], tmp_path) == []


def test_bench_plots_of_nothing_are_none(tmp_path: Path) -> None:
    assert draw([{"benchmark": "memory"}], tmp_path) == []
