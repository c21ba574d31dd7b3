"""Boxes, arrows and themes: well-formed SVG, and colours that can be read."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from docs.generate.svg import THEMES, Arrow, Box, Picture, Theme, label_position, text_width


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb, by WCAG's formula."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_docs_svg_text_can_be_read(theme: Theme) -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    for background in (theme.paper, *theme.fills.values()):
        assert contrast(theme.ink, background) >= 4.5
    assert contrast(theme.accent, theme.paper) >= 3 and contrast(theme.faint, theme.paper) >= 3
    assert set(theme.fills) == set(THEMES[0].fills)


def test_docs_svg_is_well_formed_and_repeatable() -> None:
    box = Box(1, 2, 90, 40, "kernel", ("a < b & c", "second"), lit=True)
    arrows = [Arrow(0, 0, 50, 0, "level"), Arrow(0, 0, 0, 50, "upright", lit=True)]
    picture = Picture("p", "A & B", "what it shows", 200, 100, [box, replace(box, lit=False, top=True)], arrows)
    for theme in THEMES:
        text = picture.draw(theme)
        assert text == picture.draw(theme)
        root = ET.fromstring(text)
        space = "{http://www.w3.org/2000/svg}"
        assert root.find(f"{space}title") is not None and root.findtext(f"{space}desc") == "what it shows"
        assert [t.text for t in root.iter(f"{space}text")] == ["a < b & c", "second"] * 2 + ["level", "upright"]
        assert text.count(theme.accent) == 3  # the lit box, the lit arrow's line and head


def test_docs_svg_labels_stand_beside_their_arrows() -> None:
    assert label_position(Arrow(0, 100, 100, 100)) == (50, 93)
    assert label_position(Arrow(0, 100, 100, 100, above=False)) == (50, 117)
    assert label_position(Arrow(10, 0, 10, 40)) == (18, 24.5)
    assert text_width("12345") > text_width("1234") > 0
