"""`python -m tests.endurance --cycles 1000 --minutes 60`: the long form, with a bar, a table and JSON."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tests.endurance.run import Plan, run, table, write_json


def main(arguments: list[str] | None = None) -> int:
    """0 when nothing grew."""
    parser = argparse.ArgumentParser(prog="python -m tests.endurance", description=__doc__)
    parser.add_argument("--cycles", type=int, default=1000, help="Buffers to make and destroy, over all worlds")
    parser.add_argument("--minutes", type=float, default=60.0, help="of mixed modes, over all worlds")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args(arguments)
    if options.cycles < 1 or not options.minutes > 0.0:
        parser.error("--cycles takes 1 or more, --minutes more than 0")
    begin = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("starting", total=1.0)
        findings = run(
            Plan(options.cycles, options.minutes),
            lambda what, done: bar.update(task, description=what, completed=done),
        )
    print(table(findings))
    print(f"{time.monotonic() - begin:.0f} s in all")
    if options.json is not None:
        write_json(findings, options.json)
    return int(any(finding.beyond for finding in findings))


if __name__ == "__main__":
    sys.exit(main())
