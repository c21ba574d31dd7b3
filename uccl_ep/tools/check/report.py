"""The figures and findings for people, as tables, and for machines, as one JSON object with a schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.box import ROUNDED
from rich.console import Console
from rich.table import Table
from rich.text import Text

import uccl_ep
from uccl_ep.tools.check.judge import judge, sides_in_words
from uccl_ep.tools.check.measure import Measured
from uccl_ep.tools.doctor.record import MISSING, SLOW, Finding
from uccl_ep.tools.doctor.report import STYLE, story

SCHEMA = 1  # of the JSON object; grows when a field changes its meaning or goes, not when one is added


def as_json(measured: Measured) -> dict[str, Any]:
    """schema, uccl_ep, the fields of Measured, findings [{fields of Finding}]."""
    findings = [asdict(finding) for finding in judge(measured)]
    return {"schema": SCHEMA, "uccl_ep": uccl_ep.__version__, **asdict(measured), "findings": findings}


def print_report(measured: Measured, console: Console) -> None:
    """What it carries, then each finding with the command that mends it."""
    findings = judge(measured)
    words = f"{measured.family} between {sides_in_words(measured.sides)}: {measured.reason}"
    console.print(Text(words, "bold"), soft_wrap=True)
    console.print(_speeds(measured))
    console.print(_findings(findings))
    bad = [f for f in findings if f.state in (SLOW, MISSING)]
    verdict = f"{len(bad)} line(s) with something to mend" if bad else "nothing to mend was found"
    console.print(Text(verdict, "bold yellow" if bad else "bold green"))


def _speeds(measured: Measured) -> Table:
    table = Table(box=ROUNDED, title="medians of the rounds", title_justify="left", title_style="")
    for heading in ("writes from", "bytes", "million writes/s", "GB/s", "round trip, us"):
        table.add_column(heading, justify="left" if heading == "writes from" else "right")
    for side in measured.sides:
        for s in side.speeds:
            size = f"{s.size:,}" if s.size else "0 (immediates)"
            cells = (f"{s.writes_per_s / 1e6:.3f}", f"{s.bytes_per_s / 1e9:.3f}", f"{s.round_trip_us:.1f}")
            table.add_row(side.hostname, size, *cells)
        table.add_section()
    return table


def _findings(findings: Sequence[Finding]) -> Table:
    table = Table(box=ROUNDED, expand=True)
    for heading in ("where", "check", "state"):
        table.add_column(heading, no_wrap=heading != "where")
    table.add_column("found", overflow="fold", ratio=1)
    for finding in findings:
        state = Text(finding.state, STYLE[finding.state])
        table.add_row(Text(finding.path), Text(finding.name), state, story(finding))
    return table
