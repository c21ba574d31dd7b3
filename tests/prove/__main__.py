"""Runs every proof and prints one table; status 1 when any of it does not hold. See README.md."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.prove.steps import Row, Step, steps

ROOT = Path(__file__).resolve().parents[2]


def run(step: Step, folder: Path) -> tuple[int, float, str]:
    """(exit status, seconds, output); the output is shown as it comes. 124 when it ran out of time."""
    begin, log = time.monotonic(), folder / f"{step.name}.log"
    command = ["timeout", "--kill-after=10", str(step.limit_s), *step.command]
    with log.open("w") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            env=os.environ | dict(step.environment),
        )  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            file.write(line)
        status = process.wait()
    return status, time.monotonic() - begin, log.read_text()


def rows_of(step: Step, status: int, output: str, figures: Path) -> list[Row]:
    """What the step showed; a step whose figures cannot be read has not shown anything."""
    rows = []
    try:
        rows = list(step.read(output, figures)) or [Row("figures", "none", False)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        rows = [Row("figures", f"unreadable: {type(error).__name__}: {error}", False)]
    if status != 0:
        why = f"out of time ({step.limit_s} s)" if status == 124 else f"status {status}"
        rows.append(Row("ended", why, False))
    return rows


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.prove", description=__doc__)
    parser.add_argument("--seeds", type=int, default=15000, help="fixed seeds to simulate (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=2.0, help="most minutes for each simulation (%(default)s)")
    parser.add_argument("--jobs", type=int, default=4, help="fault plans at a time (%(default)s)")
    parser.add_argument("--only", nargs="*", default=[], help="names of the steps to run")
    parser.add_argument("--skip", nargs="*", default=[], help="names of steps to leave out; the table says so")
    options = parser.parse_args(arguments)
    table = Table("proof", "what", "figure", "", title="make prove")
    failed, skipped, ran = False, [], 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for step in steps(folder, options.seeds, options.minutes, options.jobs):
            if options.only and step.name not in options.only:
                continue
            if step.name in options.skip:
                skipped.append(step.name)
                table.add_row(step.name, "SKIPPED, as asked", "", "", end_section=True)
                continue
            print(f"\n==> {step.name}: {' '.join(step.command)}", flush=True)
            status, seconds, output = run(step, folder)
            ran += 1
            shown = rows_of(step, status, output, folder / step.name)
            for index, row in enumerate(shown):
                failed |= not row.good
                title = f"{step.name} ({seconds:.0f} s)" if index == 0 else ""
                table.add_row(title, row.what, row.figure, "" if row.good else "NOT HELD", end_section=row is shown[-1])
    Console(width=120).print(table)
    if failed:
        print("not proven: see NOT HELD above")
    elif skipped or options.only:
        print(f"what was run holds ({ran} of the proofs); left out: {', '.join(skipped) or 'all but those named'}")
    else:
        print("all of it holds")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
