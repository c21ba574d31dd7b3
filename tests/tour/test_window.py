"""tests.tour.window: what is drawn has the text's size and colours, and a picture of nothing is known as one."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from rich.text import Text

from tests.tour.window import draw, uniform

RED = (204, 85, 90)  # of rich's theme for pictures


def colours(path: Path) -> set[tuple[int, ...]]:
    with Image.open(path) as image:
        assert image.format == "PNG"
        found = image.convert("RGB").getcolors(1 << 20)
    assert found is not None
    return {colour for _, colour in found}


def test_tour_window_is_a_picture_of_the_text(tmp_path: Path) -> None:
    one, three = tmp_path / "one.png", tmp_path / "three.png"
    draw(Text.from_ansi("rank 3"), one, 40, "uccl-ep")
    draw(Text.from_ansi("rank 3\n\x1b[31m███\x1b[0m\n│ ✓ 漢 │"), three, 40, "uccl-ep")
    assert not uniform(one) and not uniform(three)
    assert RED in colours(three) and RED not in colours(one)
    with Image.open(one) as small, Image.open(three) as large:
        assert small.width == large.width > 40 * 5 and large.height > small.height
        assert small.crop((0, small.height // 2, small.width, small.height)).getcolors(1 << 20) is not None


def test_tour_window_shows_every_style(tmp_path: Path) -> None:
    seen = []
    for code in ("0", "1", "2", "7", "32", "42"):
        path = tmp_path / f"{code}.png"
        draw(Text.from_ansi(f"\x1b[{code}m█ rank\x1b[0m"), path, 20, "")
        seen.append(path.read_bytes())
    assert len(set(seen)) == 6


def test_tour_window_wraps_what_is_long(tmp_path: Path) -> None:
    short, long = tmp_path / "short.png", tmp_path / "long.png"
    draw(Text("x" * 20), short, 20, "")
    draw(Text("x" * 41), long, 20, "")
    with Image.open(short) as a, Image.open(long) as b:
        assert a.width == b.width and b.height > a.height


def test_tour_window_uniform_pictures(tmp_path: Path) -> None:
    empty = tmp_path / "empty.png"
    image = Image.new("RGB", (30, 30), (255, 255, 255))
    image.save(empty)
    assert uniform(empty)
    image.putpixel((7, 7), (0, 0, 0))
    image.save(empty)
    assert not uniform(empty)
    empty.write_bytes(empty.read_bytes()[:20])
    with pytest.raises(OSError):
        uniform(empty)
    empty.write_text("<svg/>")
    with pytest.raises(OSError):
        uniform(empty)
