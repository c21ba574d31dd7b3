"""What drivers say and what the runner shows: one Row for each integrator and path."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

TOLD = "told.jsonl"
"""In the job's folder: one line for each thing that a driver says."""
HEADERS = ("integrator", "version", "ranks", "path", "max error", "tolerance", "")


@dataclass(frozen=True)
class Row:
    """A path through an integrator's code: the largest deviation from its reference over all ranks."""

    integrator: str
    version: str
    ranks: str
    path: str
    error: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance  # False for NaN

    def cells(self) -> tuple[str, ...]:
        verdict = "pass" if self.passed else "FAIL"
        figures = (f"{self.error:.3g}", f"{self.tolerance:.3g}", verdict)
        return (self.integrator, self.version, self.ranks, self.path, *figures)


@dataclass(frozen=True)
class Told:
    """Everything that a driver told."""

    rows: list[Row]
    shims: list[str]
    notes: list[str]


def tell(file: Path, kind: str, value: object) -> None:
    """Appends a line for the runner; kind is row, shim or note."""
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps([kind, asdict(value) if isinstance(value, Row) else value]) + "\n")


def read(file: Path) -> Told:
    """What was told so far."""
    told = Told([], [], [])
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    for kind, value in map(json.loads, lines):
        if kind == "row":
            told.rows.append(Row(**value))
        else:
            {"shim": told.shims, "note": told.notes}[kind].append(value)
    return told


def table(rows: Iterable[tuple[str, ...]]) -> str:
    """Plain columns, one line a row, so that a log can be searched."""
    cells = [HEADERS, *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(HEADERS))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells)
