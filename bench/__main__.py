"""`python -m bench` (`make bench`): every measurement that needs no GPU, its tables, and a line for each target."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.parts import all_parts
from bench.session import report, run_parts


def main(
    out: Annotated[Path, typer.Option(help="Folder for the JSON results and logs.")] = Path("build/bench/results"),
    only: Annotated[list[str] | None, typer.Option(help="Only this part; may be repeated. See --list.")] = None,
    minutes: Annotated[float, typer.Option(help="For all parts together; what does not fit is left out.")] = 14.5,
    show: Annotated[bool, typer.Option("--list", help="Name the parts and their time limits, and end.")] = False,
) -> None:
    """Measure what needs no GPU, under 15 minutes on two cores.

    Beside gloo and Open MPI in DeepSeek-V3's shapes, bytes and messages, instructions of the proxy, the command ring,
    memory. Ends with status 0 when every part gave a result, whatever the targets say, 1 when one did not.

    Examples:

      python -m bench

      python -m bench --only build --only ring
    """
    console = Console()
    parts = all_parts()
    if show:
        for part in parts:
            console.print(f"{part.name:24} {part.limit_s:4.0f} s  {part.what}", highlight=False, markup=False)
        return
    unknown = sorted(set(only or ()) - {part.name for part in parts})
    if unknown:
        raise typer.BadParameter(f"no part {', '.join(unknown)}; parts: {', '.join(part.name for part in parts)}")
    since = time.time() - 1.0  # file systems round
    chosen = [part for part in parts if not only or part.name in only]
    outcomes = run_parts(chosen, out.absolute(), minutes, console)
    sys.exit(report(outcomes, out.absolute(), since, console))


if __name__ == "__main__":
    typer.run(main)
