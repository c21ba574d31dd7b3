"""A terminal's window as a PNG: rich reads the colour codes, Pillow draws cell by cell. Both come with uccl-ep."""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib
from PIL import Image, ImageDraw, ImageFont
from rich.color import blend_rgb
from rich.color_triplet import ColorTriplet
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME as THEME
from rich.text import Text

_SIZE = 15  # of the font, in pixels
_MARGIN = 12
_BAR = ColorTriplet(60, 63, 65)  # above the text, with the window's title


def draw(text: Text, path: Path, columns: int, title: str) -> None:
    """Draws what a terminal of `columns` cells would show; longer lines are wrapped as rich wraps them."""
    console = Console(width=columns, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    lines = console.render_lines(text, pad=False)
    # matplotlib brings this font; its lines of tables join, and no machine needs fonts of its own.
    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    plain, bold = (ImageFont.truetype(fonts / f"DejaVuSansMono{kind}.ttf", _SIZE) for kind in ("", "-Bold"))
    wide, high = round(plain.getlength("M")), sum(plain.getmetrics())
    top = high + 2 * _MARGIN
    size = (columns * wide + 2 * _MARGIN, top + len(lines) * high + 2 * _MARGIN)
    image = Image.new("RGB", size, THEME.background_color)
    pen = ImageDraw.Draw(image)
    pen.rectangle((0, 0, size[0], top - _MARGIN), fill=_BAR)
    pen.text((_MARGIN, _MARGIN // 2), title, font=bold, fill=THEME.foreground_color)
    for row, line in enumerate(lines):
        column = 0
        for segment in line:
            front, back = _colours(segment.style or Style.null())
            font = bold if segment.style is not None and segment.style.bold else plain
            for character in segment.text:
                x, y, cells = _MARGIN + column * wide, top + row * high, Segment(character).cell_length
                if back != THEME.background_color:
                    pen.rectangle((x, y, x + cells * wide - 1, y + high - 1), fill=back)
                pen.text((x, y), character, font=font, fill=front)
                column += cells
    image.save(path, "PNG")


def _colours(style: Style) -> tuple[ColorTriplet, ColorTriplet]:
    """(of the character, behind it)."""
    front = THEME.foreground_color if style.color is None else style.color.get_truecolor(THEME)
    back = THEME.background_color if style.bgcolor is None else style.bgcolor.get_truecolor(THEME, foreground=False)
    if style.reverse:
        front, back = back, front
    return (blend_rgb(front, back, 0.4) if style.dim else front), back


def uniform(picture: Path) -> bool:
    """Whether all pixels of a PNG are alike: then nothing is to be seen on it.

    Raises:
        OSError: it is no PNG, or is cut short.
    """
    with Image.open(picture, formats=["PNG"]) as image:
        return all(low == high for low, high in image.convert("RGB").getextrema())
