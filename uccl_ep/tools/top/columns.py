"""Tables that fit the width they are given: a column goes as a whole, the least important first, and none is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

KEPT = 0
"""As `goes`: the column never goes."""
_GAP = 2  # characters beside a column: its padding, and the box's divider


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: what it shows. unit: of all its numbers; stands below the name.
        goes: its turn to go when the table is too wide, 1 first; KEPT: it stays.
        left: its text begins at the left; numbers end at the right.
    """

    name: str
    unit: str = ""
    goes: int = KEPT
    left: bool = False

    @property
    def head(self) -> str:
        """Its heading, in one or two lines."""
        return f"{self.name}\n{self.unit}" if self.unit else self.name


@dataclass(frozen=True)
class Line:
    """A line of a table: a cell for every column, and how it looks."""

    cells: Sequence[str]
    style: str = ""


def fitted(title: str, columns: Sequence[Column], lines: Sequence[Line], width: int | None) -> RenderableType:
    """The table of the columns that have room.

    Args:
        width: characters of a line; None: all columns.

    Returns:
        The table; below it, which columns have gone.
    """
    widths = [max(_width(column.head), *(cell_len(line.cells[i]) for line in lines), 0)
              for i, column in enumerate(columns)]  # fmt: skip
    shown = list(range(len(columns)))
    leaving = sorted((i for i in shown if columns[i].goes != KEPT), key=lambda i: columns[i].goes, reverse=True)
    while width is not None and leaving and sum(widths[i] + _GAP for i in shown) > width:
        shown.remove(leaving.pop())
    table = Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False
    )
    for i in shown:
        justify = "left" if columns[i].left else "right"
        table.add_column(columns[i].head, justify=justify, no_wrap=True, min_width=min(widths[i], width or widths[i]))  # type: ignore[arg-type]
    for line in lines:
        table.add_row(*(Text(line.cells[i]) for i in shown), style=line.style)
    gone = dict.fromkeys(column.name for i, column in enumerate(columns) if i not in shown)
    return Group(table, Text(f"no room for: {', '.join(gone)} (--wide: all)", "dim")) if gone else table


def _width(head: str) -> int:
    return max(map(cell_len, head.split("\n")))


def mebibytes(num_bytes: float) -> str:
    """Bytes as MiB without the unit, with about three digits: 0, 0.004, 2.5, 1536."""
    value = num_bytes / (1 << 20)
    return "0" if num_bytes == 0 else f"{value:.3f}" if value < 1 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
