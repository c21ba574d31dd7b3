"""`uccl-ep env`: every UCCL_EP_* variable, its value here, what it may be; for a terminal, for grep, for machines. And
what the cluster has set for others that gives a default here."""

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
    from uccl_ep.system.site_settings import SiteValue

_INTERFACE = "UCCL_EP_INTERFACE"
SCHEMA = 1  # of the JSON object; grows when a field changes its meaning or goes, not when one is added


def env(
    only_set: Annotated[bool, typer.Option("--set", help="Only variables that are set.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Print every UCCL_EP_* environment variable: its value here, its default, what it may be, what it is for.

    Into a file or a pipe it writes a line for each, which a shell can read: NAME=value, then the rest as a comment. A
    variable that is not set stands there with its default, or with what a variable of NCCL, UCCL or NVSHMEM gives. What
    no job would read, a misspelt name or a value that is refused, is named on stderr.

    Examples:

      uccl-ep env

      uccl-ep env | grep TIMEOUT

      uccl-ep env --set > job.env
    """
    from rich.console import Console

    from uccl_ep.settings import describe

    site, aloud = site_of(os.environ)
    rows = [row for row in describe() if not only_set or row.name in os.environ or row.name in site]
    console = Console()
    wrong = wrong_in(os.environ)
    if as_json:
        typer.echo(json.dumps({**to_json(rows, os.environ, site), "not_read": [*wrong, *aloud]}, indent=1))
        return
    if console.is_terminal:
        console.print(table_of(rows, os.environ, site) if rows else "No UCCL_EP_* variable is set.", highlight=False)
    else:
        for row in rows:
            typer.echo(line_of(row, os.environ, site))
    for words in aloud:
        typer.echo(f"# {words}")
    for words in wrong:
        typer.echo(f"uccl-ep: {words}", err=True)


def wrong_in(environment: Mapping[str, str]) -> list[str]:
    """A sentence for each UCCL_EP_* name that is no variable, and for each value that is refused."""
    from uccl_ep.errors import InvalidArgument
    from uccl_ep.settings import VARIABLES, unknown_names

    found = unknown_names(environment)
    for variable in VARIABLES:
        try:
            if text := environment.get(variable.name, "").strip():
                variable.parse(text)
        except InvalidArgument as refusal:
            found.append(str(refusal))
    return found


def site_of(environment: Mapping[str, str]) -> tuple[dict[str, SiteValue], list[str]]:
    """(what others' variables give, by the name of ours; what is said of those that cannot be honoured)."""
    from uccl_ep.settings import PREFIX, VARIABLES
    from uccl_ep.system.site_settings import read_site

    rows = {row.field: row for row in VARIABLES}
    own = [row.field for row in VARIABLES if environment.get(row.name, "").strip()]
    found, aloud = read_site(environment, own, lambda name, text: "" if rows[name].takes(text) else rows[name].allowed)
    return {PREFIX + value.field.upper(): value for value in found}, aloud


def to_json(
    rows: Sequence[DescribedVariable], environment: Mapping[str, str], site: Mapping[str, SiteValue]
) -> dict[str, Any]:
    """schema, variables [{name, kind, default, allowed, help, set, value, by, reading}].

    value: null where none is set. by: the variable of another library that gives `reading` in its place, or null.
    """
    variables = [
        {
            **asdict(row),
            "set": row.name in environment,
            "value": environment.get(row.name),
            "by": site[row.name].words if row.name in site else None,
            "reading": site[row.name].reading if row.name in site else None,
        }
        for row in rows
    ]
    return {"schema": SCHEMA, "variables": variables}


def line_of(row: DescribedVariable, environment: Mapping[str, str], site: Mapping[str, SiteValue]) -> str:
    """A variable as an assignment that a shell takes, with the rest as a comment."""
    default = "" if row.default == "empty" else row.default
    value, by = environment.get(row.name, default), ""
    if row.name in site:
        by = f"by {site[row.name].words}, "
        # Ours takes addresses, not names: theirs go on to say it.
        value = default if row.name == _INTERFACE else site[row.name].reading
    return (
        f"{row.name}={shlex.quote(value) if value else ''}  "
        f"# {by}default {row.default}, allowed {row.allowed}. {row.help}"
    )


def table_of(rows: Sequence[DescribedVariable], environment: Mapping[str, str], site: Mapping[str, SiteValue]) -> Table:
    """The variables for a terminal. Names are never folded, so that they can be copied."""
    from rich.table import Table
    from rich.text import Text

    table = Table()
    table.add_column("variable", no_wrap=True, min_width=max((len(row.name) for row in rows), default=0))
    table.add_column("here", overflow="fold")
    table.add_column("meaning", ratio=1, overflow="fold")
    for row in rows:
        rest = f"\ndefault {row.default}, allowed {row.allowed}"
        here = (
            f"{site[row.name].reading}\nby {site[row.name].words}"
            if row.name in site
            else environment.get(row.name, "-")
        )
        table.add_row(row.name, Text(here), Text.assemble(row.help, (rest, "dim")))
    return table
