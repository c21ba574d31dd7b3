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
from uccl_ep.tools.doctor.record import MISSING, NOT_NEEDED, READY, Finding, Verdict

SCHEMA = 1  # of the JSON object; grows when a field changes its meaning or goes, not when one is added
_STYLE = {READY: "bold green", MISSING: "bold red", NOT_NEEDED: "dim"}
_WEAK = "bold yellow"  # missing, and the path works without


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
    """Required paths that are not ready."""
    return [path for path in required if examination.state_of(path) != READY]


def print_report(examination: Examination, console: Console, everything: bool, quiet: bool = False) -> None:
    """A line for each path, then a table for each.

    Args:
        everything: also the single checks of paths that nobody here needs. quiet: no tables.
    """
    print_verdicts(examination, console)
    if quiet:
        return
    for verdict in examination.verdicts:
        if everything or verdict.state != NOT_NEEDED:
            rows = [f for f in examination.findings if f.path == verdict.path]
            console.print()
            console.print(_section(verdict, rows))


def _section(verdict: Verdict, rows: Sequence[Finding]) -> Table:
    title = Text.assemble((verdict.path, "bold"), ": ", (verdict.state, _STYLE[verdict.state]))
    table = Table(title=title, title_justify="left", title_style="", box=ROUNDED, expand=True)
    table.add_column("check", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("found", overflow="fold", ratio=1)
    for finding in rows:
        weak = finding.state == MISSING and not finding.blocks
        state = Text(finding.state, _WEAK if weak else _STYLE[finding.state])
        table.add_row(Text(finding.name), state, _story(finding))
    return table


def _story(finding: Finding) -> Text:
    """What was found; where something is missing, also what is needed and what to do."""
    text = Text(finding.found)
    if finding.state == MISSING:
        text.append(f"\nneeded: {finding.needed}" if finding.needed else "", "dim")
        text.append(f"\nfix: {finding.fix}" if finding.fix else "", "bold")
    return text


def print_verdicts(examination: Examination, console: Console) -> None:
    """One line a path."""
    for verdict in examination.verdicts:
        mark = {READY: "+", MISSING: "x", NOT_NEEDED: "-"}[verdict.state]
        line = Text.assemble((f"{mark} {verdict.path:<10}", _STYLE[verdict.state]), f"{verdict.state}: {verdict.words}")
        console.print(line, soft_wrap=True)
