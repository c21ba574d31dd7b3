"""The doctor's findings for people, as a table grouped by path, and for machines, as one JSON object with a schema."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.box import ROUNDED
from rich.console import Console
from rich.table import Table
from rich.text import Text

import uccl_ep
from uccl_ep.tools.doctor.catalogue import Examination
from uccl_ep.tools.doctor.record import (
    MISSING,
    NO_DEVICE,
    NOT_NEEDED,
    OK,
    SLOW,
    UNKNOWN,
    UNUSED,
    USABLE,
    Finding,
    Verdict,
)

SCHEMA = 2  # of the JSON object; grows when a field changes its meaning or goes, not when one is added
STYLE = {
    OK: "bold green",
    SLOW: "bold yellow",
    UNKNOWN: "bold yellow",
    MISSING: "bold red",
    NO_DEVICE: "dim",
    NOT_NEEDED: "dim",
}
_MARK = {OK: "+", SLOW: "~", MISSING: "x", NO_DEVICE: "-", NOT_NEEDED: "-"}


def as_json(examination: Examination, required: Sequence[str]) -> dict[str, Any]:
    """schema, uccl_ep, host, paths {name: {state, words}}, required, satisfied, findings [{fields of Finding}]."""
    return {
        "schema": SCHEMA,
        "uccl_ep": uccl_ep.__version__,
        "host": {
            "name": platform.node(),
            "kernel": platform.release(),
            "machine": platform.machine(),
            "python": platform.python_version(),
        },
        "paths": {v.path: {"state": v.state, "words": v.words} for v in examination.verdicts},
        "required": list(required),
        "satisfied": not unsatisfied(examination, required),
        "findings": [asdict(finding) for finding in examination.findings],
    }


def unsatisfied(examination: Examination, required: Sequence[str]) -> list[str]:
    """Required paths that cannot be used."""
    return [path for path in required if examination.state_of(path) not in USABLE]


def print_report(examination: Examination, console: Console, everything: bool, quiet: bool = False) -> None:
    """A line for each path, then a table for each.

    Args:
        everything: also the single checks of paths that nobody here needs. quiet: no tables.
    """
    print_verdicts(examination, console)
    if quiet:
        return
    for verdict in examination.verdicts:
        if everything or verdict.state not in UNUSED:
            rows = [f for f in examination.findings if f.path == verdict.path]
            console.print()
            console.print(_section(verdict, rows))


def _section(verdict: Verdict, rows: Sequence[Finding]) -> Table:
    title = Text.assemble((verdict.path, "bold"), ": ", (verdict.state, STYLE[verdict.state]))
    table = Table(title=title, title_justify="left", title_style="", box=ROUNDED, expand=True)
    table.add_column("check", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("found", overflow="fold", ratio=1)
    for finding in rows:
        table.add_row(Text(finding.name), Text(finding.state, STYLE[finding.state]), story(finding))
    return table


def story(finding: Finding) -> Text:
    """What was found; where that is not enough, also what is needed and what to do."""
    text = Text(finding.found)
    if finding.state in (SLOW, UNKNOWN, MISSING):
        text.append(f"\nneeded: {finding.needed}" if finding.needed else "", "dim")
        text.append(f"\nfix: {finding.fix}" if finding.fix else "", "bold")
    return text


def print_verdicts(examination: Examination, console: Console) -> None:
    """One line a path."""
    for verdict in examination.verdicts:
        mark = f"{_MARK[verdict.state]} {verdict.path:<10}"
        line = Text.assemble((mark, STYLE[verdict.state]), f"{verdict.state}: {verdict.words}")
        console.print(line, soft_wrap=True)
