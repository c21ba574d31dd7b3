"""A picture of boxes, arrows and labels as SVG, in a light and a dark form: what the journey's pictures are made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.sax.saxutils import escape

LINE_HEIGHT = 17.0  # of text of 13 units
CHARACTER_WIDTH = 7.2  # of the widest common letters at 13 units: text is measured by it, never too small


@dataclass(frozen=True)
class Theme:
    """Colours of one form. `ink` on `paper`, and on every fill, has a contrast of 4.5 or more (tests hold it)."""

    name: str
    paper: str
    ink: str
    faint: str
    fills: dict[str, str]
    accent: str


LIGHT = Theme(
    "light",
    paper="#ffffff",
    ink="#1c2733",
    faint="#65707c",
    fills={"node": "#f3f5f8", "kernel": "#dcebff", "memory": "#fff1cf", "proxy": "#dff3e3", "wire": "#f6ddea"},
    accent="#b4235f",
)
DARK = Theme(
    "dark",
    paper="#14181f",
    ink="#e8edf3",
    faint="#9aa7b5",
    fills={"node": "#1c222c", "kernel": "#1d3a5f", "memory": "#4d3d12", "proxy": "#1d4a2b", "wire": "#55203c"},
    accent="#ff7fb0",
)
THEMES = (LIGHT, DARK)


@dataclass(frozen=True)
class Box:
    """A labelled rectangle; `kind` is a key of Theme.fills, `lit` frames it as what the picture is about."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    lines: tuple[str, ...]
    lit: bool = False
    top: bool = False  # the label stands at the upper edge: something lies inside


@dataclass(frozen=True)
class Arrow:
    """A straight arrow with an optional label at its middle, `above` it or below."""

    x1: float
    y1: float
    x2: float
    y2: float
    label: str = ""
    lit: bool = False
    above: bool = True


@dataclass
class Picture:
    """Boxes and arrows in the order in which they are drawn."""

    name: str
    title: str
    description: str  # for who does not see it
    width: float
    height: float
    boxes: list[Box] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)

    def draw(self, theme: Theme) -> str:
        """The picture as a complete SVG file, the same text on every call."""
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}" role="img" '
            f'font-family="Helvetica, Arial, sans-serif" font-size="13">',
            f"<title>{escape(self.title)}</title>",
            f"<desc>{escape(self.description)}</desc>",
            f'<rect width="{self.width:g}" height="{self.height:g}" fill="{theme.paper}"/>',
            *(_box(box, theme) for box in self.boxes),
            *(_arrow(arrow, theme) for arrow in self.arrows),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"


def text_width(text: str) -> float:
    """An upper bound of a label's width."""
    return CHARACTER_WIDTH * len(text)


def _box(box: Box, theme: Theme) -> str:
    stroke, thick = (theme.accent, 2.5) if box.lit else (theme.faint, 1.0)
    parts = [
        f'<rect x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}" rx="6" '
        f'fill="{theme.fills[box.kind]}" stroke="{stroke}" stroke-width="{thick:g}"/>'
    ]
    first = box.y + LINE_HEIGHT if box.top else box.y + box.height / 2 - LINE_HEIGHT * (len(box.lines) - 1) / 2 + 4.5
    for index, line in enumerate(box.lines):
        weight = ' font-weight="bold"' if index == 0 else ""
        parts.append(
            f'<text x="{box.x + box.width / 2:g}" y="{first + LINE_HEIGHT * index:g}" text-anchor="middle" '
            f'fill="{theme.ink}"{weight}>{escape(line)}</text>'
        )
    return "\n".join(parts)


def _arrow(arrow: Arrow, theme: Theme) -> str:
    colour, thick = (theme.accent, 2.5) if arrow.lit else (theme.faint, 1.5)
    dx, dy = arrow.x2 - arrow.x1, arrow.y2 - arrow.y1
    length = (dx * dx + dy * dy) ** 0.5
    ux, uy = dx / length, dy / length
    left = (arrow.x2 - 10 * ux + 5 * uy, arrow.y2 - 10 * uy - 5 * ux)
    right = (arrow.x2 - 10 * ux - 5 * uy, arrow.y2 - 10 * uy + 5 * ux)
    parts = [
        f'<line x1="{arrow.x1:g}" y1="{arrow.y1:g}" x2="{arrow.x2 - 8 * ux:.1f}" y2="{arrow.y2 - 8 * uy:.1f}" '
        f'stroke="{colour}" stroke-width="{thick:g}"/>',
        f'<polygon points="{arrow.x2:g},{arrow.y2:g} {left[0]:.1f},{left[1]:.1f} {right[0]:.1f},{right[1]:.1f}" '
        f'fill="{colour}"/>',
    ]
    if arrow.label:
        x, y = label_position(arrow)
        anchor = "middle" if abs(dx) >= abs(dy) else "start"
        parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{theme.ink}">{escape(arrow.label)}</text>'
        )
    return "\n".join(parts)


def label_position(arrow: Arrow) -> tuple[float, float]:
    """Where an arrow's label stands: over or under a level arrow's middle, right of an upright one's."""
    x, y = (arrow.x1 + arrow.x2) / 2, (arrow.y1 + arrow.y2) / 2
    if abs(arrow.x2 - arrow.x1) < abs(arrow.y2 - arrow.y1):
        return x + 8, y + 4.5
    return x, y - 7 if arrow.above else y + 17
