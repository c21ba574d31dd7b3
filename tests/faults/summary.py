"""One JSON line a plan, into the file that FAULT_PLANS_JSON names, and a table of all of a run for the reader."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "FAULT_PLANS_JSON"


@dataclass(frozen=True)
class Line:
    """What came of one plan."""

    plan: str
    outcome: str  # passed | failed | skipped
    slowest_s: float = 0.0  # from the harm to the last survivor's report
    limit_s: float = 0.0
    survivors: int = 0
    leaks: int = 0
    note: str = ""


class Summary:
    """Collects lines; writes each at once, so that a run that is ended has told what it knew."""

    def __init__(self, path: str | None = None) -> None:
        named = os.environ.get(VARIABLE) if path is None else path
        self.path = Path(named) if named else None
        self.lines: list[Line] = []

    def add(self, line: Line) -> None:
        """Notes one plan."""
        self.lines.append(line)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(line)) + "\n")

    def table(self) -> str:
        """One row a plan, and the totals."""
        rows = [f"{'fault plan':<66} {'outcome':<8} {'slowest':>8} {'limit':>6}  leaks"]
        for line in self.lines:
            times = f"{line.slowest_s:>7.2f}s {line.limit_s:>5.1f}s" if line.outcome == "passed" else " " * 15
            rows.append(f"{line.plan:<66} {line.outcome:<8} {times}  {line.leaks or ''} {line.note}".rstrip())
        return "\n".join([*rows, self.totals()])

    def totals(self) -> str:
        """One line."""
        counts = {word: sum(line.outcome == word for line in self.lines) for word in ("passed", "failed", "skipped")}
        slowest = max((line.slowest_s for line in self.lines), default=0.0)
        leaks = sum(line.leaks for line in self.lines)
        words = ", ".join(f"{n} {word}" for word, n in counts.items())
        return f"fault plans: {words}; slowest survivor's report {slowest:.2f} s; {leaks} leaks"
