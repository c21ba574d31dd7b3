"""The journey's pictures: everything is inside its frame, labels fit, the page shows each picture in both themes."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from docs.generate.journey import files, main, pictures
from docs.generate.pages import KEPT_PICTURES
from docs.generate.svg import LINE_HEIGHT, Arrow, Picture, label_position, text_width

PAGES = Path(__file__).resolve().parents[3] / "docs/pages"
PAGE = (PAGES / "journey.md").read_text(encoding="utf-8")


def label_span(arrow: Arrow) -> tuple[float, float]:
    x, _ = label_position(arrow)
    level = abs(arrow.x2 - arrow.x1) >= abs(arrow.y2 - arrow.y1)
    width = text_width(arrow.label)
    return (x - width / 2, x + width / 2) if level else (x, x + width)


@pytest.mark.parametrize("name", KEPT_PICTURES)
def test_docs_journey_pictures_of_the_readme_are_as_generated(name: str) -> None:
    assert (PAGES / "pictures" / name).read_text(encoding="utf-8") == files()[name]


@pytest.mark.parametrize("picture", pictures(), ids=lambda picture: picture.name)
def test_docs_journey_everything_fits(picture: Picture) -> None:
    for box in picture.boxes:
        assert 0 <= box.x and box.x + box.width <= picture.width, box
        assert 0 <= box.y and box.y + box.height <= picture.height, box
        assert max(map(text_width, box.lines)) <= box.width, box
        assert len(box.lines) * LINE_HEIGHT <= box.height, box
    for arrow in picture.arrows:
        left, right = label_span(arrow)
        assert 0 <= left and right <= picture.width, arrow
        assert all(0 <= y <= picture.height for y in (arrow.y1, arrow.y2)), arrow


@pytest.mark.parametrize("picture", pictures(), ids=lambda picture: picture.name)
def test_docs_journey_labels_cover_nothing(picture: Picture) -> None:
    """A label lies wholly inside a box that holds others, or outside of a box."""
    for arrow in (arrow for arrow in picture.arrows if arrow.label):
        left, right = label_span(arrow)
        _, y = label_position(arrow)
        for box in picture.boxes:
            apart = right <= box.x or box.x + box.width <= left or y + 4 <= box.y or box.y + box.height <= y - 13
            inside = box.top and box.x <= left and right <= box.x + box.width
            assert apart or inside, (arrow.label, box.lines)


@pytest.mark.parametrize("picture", pictures(), ids=lambda picture: picture.name)
def test_docs_journey_boxes_lie_beside_or_inside_each_other(picture: Picture) -> None:
    for i, a in enumerate(picture.boxes):
        for b in picture.boxes[i + 1 :]:
            apart = a.x + a.width <= b.x or b.x + b.width <= a.x or a.y + a.height <= b.y or b.y + b.height <= a.y
            inside = a.top and a.x <= b.x and b.x + b.width <= a.x + a.width
            inside = inside and a.y + LINE_HEIGHT <= b.y and b.y + b.height <= a.y + a.height
            assert apart or inside, (a, b)


def test_docs_journey_has_every_picture_twice() -> None:
    names = set(files())
    assert len(names) == 2 * len(pictures()) == 12
    for name in names:
        theme = name.rsplit("-", 1)[1].removesuffix(".svg")
        assert PAGE.count(f"(pictures/{name}#only-{theme})") == 1
    assert PAGE.count("](pictures/") == len(names)


def test_docs_journey_tells_the_protocols_words() -> None:
    words = "".join(files().values())
    for word in ("16 bytes", "any order", "expect", "arrive", "epoch", "ascending k", "dispatch_recv"):
        assert word in words


def test_docs_journey_writes_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "new")]) == 0
    written = sorted((tmp_path / "new").iterdir())
    assert [path.name for path in written] == sorted(files())
    assert all(ET.parse(path).getroot().tag.endswith("svg") for path in written)
    assert main([]) == 2 and "usage" in capsys.readouterr().err
