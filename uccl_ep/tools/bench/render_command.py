"""The command `uccl-ep bench render`; what it does is in render.py and plots.py, which are loaded when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def render(
    files: Annotated[list[Path], typer.Argument(help="JSON files that `uccl-ep bench` or `make bench` wrote.")],
    plots: Annotated[
        Path | None, typer.Option(help="Folder for pictures of the results; without it only tables are made.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File for the tables, as Markdown; default: standard output.")
    ] = None,
) -> None:
    """Make the tables and pictures of the documentation from result files.

    Measurements of one kind share a table, whose rows name the file that each figure is from, and the machines come
    below it. A figure that is quoted anywhere should come from here.

    Examples:

      uccl-ep bench render build/bench/results/*.json

      uccl-ep bench render bench/results/*.json --out tables.md --plots pictures
    """
    from uccl_ep.tools.bench.render import load, markdown

    results = [load(path) for path in files]
    text = markdown(results)
    if out is None:
        typer.echo(text)
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + "\n", encoding="utf-8")
    if plots is not None:
        from uccl_ep.tools.bench.plots import draw

        for path in draw(results, plots):
            typer.echo(f"wrote {path}", err=True)
