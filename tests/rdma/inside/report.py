"""What a step of the guest reports: rows of the table that `make test-rdma` prints, and why something was skipped."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One line of the table: what was done, its figure, and whether that is what it must be."""

    what: str
    figure: str
    good: bool = True


@dataclass
class Report:
    """A step's result.

    Attributes:
        passed: tests that passed. rows_compared: rows of dispatch and combine that were compared with the reference.
        skipped: what could not be run here, and why. failure: the exception that ended the step; empty: none did.
    """

    step: str
    rows: list[Row] = field(default_factory=list)
    passed: int = 0
    rows_compared: int = 0
    skipped: list[str] = field(default_factory=list)
    failure: str = ""
    seconds: float = 0.0

    def add(self, what: str, figure: str, good: bool = True) -> None:
        """Adds a row; counts a test that passed when it is good."""
        self.rows.append(Row(what, figure, good))
        self.passed += good

    def note(self, what: str, figure: str) -> None:
        """Adds a row that is no test: under which conditions the others are."""
        self.rows.append(Row(what, figure))

    @property
    def good(self) -> bool:
        """Everything that ran did what it must."""
        return not self.failure and all(row.good for row in self.rows)

    def write(self, folder: Path) -> None:
        """As STEP.json."""
        (folder / f"{self.step}.json").write_text(json.dumps(asdict(self), indent=1) + "\n")


def read_all(folder: Path, steps: Iterable[str]) -> list[Report]:
    """The reports of these steps; a step that left none has failed."""
    found = []
    for step in steps:
        try:
            values = json.loads((folder / f"{step}.json").read_text())
            values["rows"] = [Row(**row) for row in values["rows"]]
            found.append(Report(**values))
        except (OSError, ValueError, TypeError, KeyError) as error:
            found.append(Report(step, failure=f"left no report ({error})"))
    return found
