"""The picture: a readable file of a sensible size in which both curves and the matrix have ink."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.uccl_ep.tools.demo.test_report import made_up
from uccl_ep.tools.demo.plot import draw


def pixels(path: Path) -> np.ndarray:
    from matplotlib.image import imread

    return np.asarray(imread(str(path)))[..., :3]


@pytest.mark.mostly_slow
@pytest.mark.parametrize(("ranks", "ranks_per_node"), [(1, 1), (4, 2), (8, 2)])
def test_a_png_with_curves_and_matrix(tmp_path: Path, ranks: int, ranks_per_node: int) -> None:
    path = tmp_path / "demo.png"
    draw(made_up(0.01, ranks, ranks_per_node), path)
    assert path.read_bytes().startswith(b"\x89PNG")
    image = pixels(path)
    height, width, _ = image.shape
    assert width > 1000 and height > 400

    def ink(colour: tuple[float, float, float]) -> int:
        return int((np.abs(image - np.array(colour)) < 0.02).all(-1).sum())

    assert ink((0.122, 0.467, 0.706)) > 200  # tab:blue: the ranks' curve
    assert ink((0.839, 0.153, 0.157)) > 200 or ranks == ranks_per_node  # tab:red: the border between nodes


def test_the_picture_follows_the_numbers(tmp_path: Path) -> None:
    draw(made_up(0.0), tmp_path / "a.png")
    draw(made_up(0.0), tmp_path / "same.png")
    other = made_up(0.0)
    other.ranks[2].stats["peers"][0]["bytes_sent"] = 1 << 20
    draw(other, tmp_path / "b.png")
    assert np.array_equal(pixels(tmp_path / "a.png"), pixels(tmp_path / "same.png"))
    assert not np.array_equal(pixels(tmp_path / "a.png"), pixels(tmp_path / "b.png"))


def test_other_suffixes_and_no_bytes_at_all(tmp_path: Path) -> None:
    report = made_up(0.0)
    for result in report.ranks:
        for peer in result.stats["peers"]:
            peer["bytes_sent"] = 0
    draw(report, tmp_path / "demo.svg")
    assert "<svg" in (tmp_path / "demo.svg").read_text()
