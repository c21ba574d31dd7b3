"""The picture is drawn, with and without disturbances."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.uccl_ep.tools.bench.scale.test_report import sample
from uccl_ep.tools.bench.scale.plot import draw_scale


@pytest.mark.slow
def test_plot_scale(tmp_path: Path) -> None:
    draw_scale(sample(), tmp_path / "new" / "scale.png")
    assert (tmp_path / "new" / "scale.png").read_bytes().startswith(b"\x89PNG")
    draw_scale({**sample(), "disturbances": [], "ratios": []}, tmp_path / "scale.svg")
    assert "<svg" in (tmp_path / "scale.svg").read_text()


def test_plot_refuses_an_unknown_suffix(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="bmpx"):
        draw_scale(sample(), tmp_path / "scale.bmpx")
