"""`uccl-ep env`: every UCCL_EP_* variable, its value here, what it may be; for a terminal, for grep, for machines."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from uccl_ep.settings import DescribedVariable

SCHEMA = 1  # of the JSON object; grows when a field changes its meaning or goes, not when one is added


def env(
    only_set: Annotated[bool, typer.Option("--set", help="Only variables that are set.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Print every UCCL_EP_* environment variable: its value here, its default, what it may be, what it is for.

    Into a file or a pipe it writes a line for each, which a shell can read: NAME=value, then the rest as a comment. A
    variable that is not set stands there with its default.

    Examples:

      uccl-ep env

      uccl-ep env | grep TIMEOUT

      uccl-ep env --set > job.env
    """
    from rich.console import Console

    from uccl_ep.settings import describe

    rows = [row for row in describe() if not only_set or row.name in os.environ]
    console = Console()
    if as_json:
        typer.echo(json.dumps(to_json(rows, os.environ), indent=1))
    elif console.is_terminal:
        console.print(table_of(rows, os.environ) if rows else "No UCCL_EP_* variable is set.", highlight=False)
    else:
        for row in rows:
            typer.echo(line_of(row, os.environ))


def to_json(rows: Sequence[DescribedVariable], environment: Mapping[str, str]) -> dict[str, Any]:
    """schema, variables [{name, kind, default, allowed, help, set, value}]; value is null where none is set."""
    variables = [{**asdict(row), "set": row.name in environment, "value": environment.get(row.name)} for row in rows]
    return {"schema": SCHEMA, "variables": variables}


def line_of(row: DescribedVariable, environment: Mapping[str, str]) -> str:
    """A variable as an assignment that a shell takes, with the rest as a comment."""
    default = "" if row.default == "empty" else row.default
    value = environment.get(row.name, default)
    return (
        f"{row.name}={shlex.quote(value) if value else ''}  # default {row.default}, allowed {row.allowed}. {row.help}"
    )


def table_of(rows: Sequence[DescribedVariable], environment: Mapping[str, str]) -> Table:
    """The variables for a terminal. Names are never folded, so that they can be copied."""
    from rich.table import Table
    from rich.text import Text

    table = Table()
    table.add_column("variable", no_wrap=True, min_width=max((len(row.name) for row in rows), default=0))
    table.add_column("here", overflow="fold")
    table.add_column("meaning", ratio=1, overflow="fold")
    for row in rows:
        rest = f"\ndefault {row.default}, allowed {row.allowed}"
        table.add_row(row.name, Text(environment.get(row.name, "-")), Text.assemble(row.help, (rest, "dim")))
    return table
