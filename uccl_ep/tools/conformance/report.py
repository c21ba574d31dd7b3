"""What a conformance run shows: a bar while it runs, then a table, or one JSON object."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from uccl_ep.tools.conformance.options import ConformanceOptions
from uccl_ep.tools.conformance.registry import PARTS, Check
from uccl_ep.tools.conformance.runner import FAILED, PASSED, SKIPPED, Outcome

_WIDE = 120  # columns from which a passed check says what it has checked
_COLOURS = {PASSED: "green", FAILED: "bold red", SKIPPED: "dim"}


class Following:
    """The progress bar, on standard error; `about` is what the ranks said of the module."""

    def __init__(self, total: int, show: bool) -> None:
        self.about: dict[str, str] = {}
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True, disable=not show)
        self._task = self._progress.add_task("starting the ranks", total=total)

    def __enter__(self) -> Following:
        """Shows the bar."""
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Takes the bar away."""
        self._progress.stop()

    def begin(self, check: Check) -> None:
        """A check has begun."""
        self._progress.update(self._task, description=check.name)

    def end(self, outcome: Outcome) -> None:
        """A check has ended."""
        self._progress.advance(self._task)


def totals(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """How many checks passed, failed (required ones, and those where the contract is open) and were skipped."""
    return {
        "passed": sum(o.status == PASSED for o in outcomes),
        "failed": sum(o.broken for o in outcomes),
        "open": sum(o.status == FAILED and not o.required for o in outcomes),
        "skipped": sum(o.status == SKIPPED for o in outcomes),
    }


def print_json(
    options: ConformanceOptions, about: dict[str, str], outcomes: Sequence[Outcome], console: Console
) -> None:
    """One object: module, options, totals, and every outcome."""
    result = {
        "module": {"name": options.module, **about},
        "ranks": options.ranks,
        "nodes": options.nodes,
        "seed": options.seed,
        "conforms": not any(o.broken for o in outcomes),
        "totals": totals(outcomes),
        "checks": [asdict(o) for o in outcomes],
    }
    console.print(json.dumps(result), markup=False, highlight=False, soft_wrap=True)


def print_table(
    options: ConformanceOptions,
    about: dict[str, str],
    outcomes: Sequence[Outcome],
    console: Console,
    only_failed: bool = False,
) -> None:
    """One row a check (`only_failed`: of those that failed), the parts that are cited, and a line of totals."""
    title = f"{options.module} {about.get('version', '')} ({about.get('from', '')}) on {about.get('device', '')}, "
    title += f"{options.ranks} ranks, {options.nodes} node(s), seed {options.seed}"
    table = Table(title=escape(title), title_justify="left")
    for heading in ("check", "part", "result", "s", "what"):
        table.add_column(heading, justify="right" if heading == "s" else "left", overflow="fold")
    rows = [o for o in outcomes if o.status == FAILED or not only_failed]
    for o in rows:
        result = "open" if o.status == FAILED and not o.required else o.status
        colour = "yellow" if result == "open" else _COLOURS[o.status]
        what = escape(o.detail or (o.summary if console.width >= _WIDE else ""))
        cells = (escape(o.name), o.part, f"[{colour}]{result}[/]", f"{o.seconds:.2f}", what)
        table.add_row(*cells, style="dim" if o.status == SKIPPED else "")
    if rows:
        console.print(table)
        cited = sorted({o.part for o in rows})
        console.print("Parts: " + "; ".join(f"{part} {PARTS[part]}" for part in cited) + ".", highlight=False)
    count = totals(outcomes)
    verdict = "[bold red]does not conform[/]" if count["failed"] else "[green]conforms[/]"
    numbers = f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped"
    also = f", {count['open']} differ where the contract is open" if count["open"] else ""
    console.print(f"{escape(options.module)} {verdict}: {numbers}{also}.", highlight=False)
