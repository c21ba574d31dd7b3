"""A whole `make bench`: runs the parts within a time, then prints every table and a line for each target."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.parts import Failed, Part


@dataclass(frozen=True)
class Outcome:
    """How a part ended: `why` is empty when it left its result."""

    part: Part
    seconds: float
    why: str


def run_parts(parts: list[Part], folder: Path, minutes: float, console: Console) -> list[Outcome]:
    """Runs the parts one after the other; one that fails does not stop the others, what no longer fits is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 60.0 * minutes
    outcomes = []
    columns = (
        TextColumn("{task.completed}/{task.total}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=len(parts))
        for part in parts:
            progress.update(bar, description=part.what)
            outcome = run_part(part, folder, deadline)
            outcomes.append(outcome)
            end = "[green]done[/]" if not outcome.why else "[red]no result[/]"
            progress.console.print(f"{end} {part.what}: {outcome.seconds:.0f} s", highlight=False)
            progress.update(bar, advance=1)
    return outcomes


def run_part(part: Part, folder: Path, deadline: float) -> Outcome:
    """One part, for at most its own limit and what is left of the whole."""
    begin = time.monotonic()
    left = deadline - begin
    if left < 1.0:
        return Outcome(part, 0.0, "not begun: the time for all parts is over")
    try:
        part.run(folder, min(part.limit_s, left))
    except Failed as error:
        return Outcome(part, time.monotonic() - begin, str(error))
    except (OSError, ValueError, KeyError, RuntimeError) as error:  # a result that cannot be read: the part's fault
        return Outcome(part, time.monotonic() - begin, f"{type(error).__name__}: {error}")
    return Outcome(part, time.monotonic() - begin, "")


def report(outcomes: list[Outcome], folder: Path, since: float, console: Console) -> int:
    """Tables of every file that was written since (seconds of the epoch), parts without a result, targets.

    Returns:
        The exit status: 0 when every part left a result, whatever the targets say.
    """
    from uccl_ep.tools.bench.render import load, tables
    from uccl_ep.tools.bench.show import show_targets

    files = sorted(path for path in folder.glob("*.json") if path.stat().st_mtime >= since)
    results = [load(path) for path in files]
    console.print(Markdown(tables(results)))
    missing = [outcome for outcome in outcomes if outcome.why]
    if missing:
        table = Table(title="parts without a result")
        for heading in ("part", "why"):
            table.add_column(heading, overflow="fold")
        for outcome in missing:
            table.add_row(outcome.part.name, outcome.why, style="red")
        console.print(table)
    console.print("targets", style="bold")
    targets = [target for result in results for target in result.get("targets", [])]
    show_targets(targets, console)
    met = sum(target["met"] for target in targets)
    seconds = sum(outcome.seconds for outcome in outcomes)
    console.print(
        f"{met} of {len(targets)} targets met, in {seconds / 60:.1f} minutes; files in {folder}", highlight=False
    )
    return 1 if missing else 0
