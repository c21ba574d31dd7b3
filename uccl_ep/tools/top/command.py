"""The command `uccl-ep top`; what it does is in top.py, which is loaded when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_WHOSE, _HOW = "Whose ranks", "How"


def top(
    pid: Annotated[
        int | None,
        typer.Option(
            help="A rank's process, its proxy's, or what has started ranks (torchrun).", rich_help_panel=_WHOSE
        ),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="The ranks' UCCL_EP_OBSERVE_DIR, on this host.", rich_help_panel=_WHOSE),
    ] = None,
    rank: Annotated[
        int, typer.Option(help="Show this rank's peers too.", show_default=False, rich_help_panel=_HOW)
    ] = -1,
    once: Annotated[bool, typer.Option("--once", help="One view, then end.", rich_help_panel=_HOW)] = False,
    interval: Annotated[float, typer.Option(help="Seconds between samples.", rich_help_panel=_HOW)] = 1.0,
    wide: Annotated[
        bool, typer.Option("--wide", help="All columns, also where they have no room.", rich_help_panel=_HOW)
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a view, a line each.", rich_help_panel=_HOW)
    ] = False,
) -> None:
    """Watch a running job: what each rank sends, what is queued, who waits for whom, and which rank is the slow one.

    Looks at the ranks of this host through shared memory, which costs them nothing; they need no option for it.
    Default: all ranks of this user. The wait matrix has, for each rank that waits and each that it waits for, how long
    the other was *late* (it had not begun) and how long the *link* was slow (its bytes were under way). The rank or
    link that holds the others up stands on top, with what speaks against it.

    "queued" are commands that no proxy has taken yet, "open" those that are not complete at their receiver, "parked"
    arrivals that wait for earlier ones. Columns that have no room are left out whole, the least important first.

    q or Ctrl-C ends it, w shows all columns; it ends by itself some seconds after the last rank. Into a file or a pipe
    it writes view after view. Status 1: there was no rank (with --once, or into a pipe).

    Examples:

      uccl-ep top

      uccl-ep top --pid 4711 --rank 3

      uccl-ep top --once --json --interval 5

      UCCL_EP_OBSERVE_DIR=/tmp/seen torchrun ... &  uccl-ep top --dir /tmp/seen
    """
    from rich.console import Console

    from uccl_ep.tools.top.top import run_top
    from uccl_ep.tools.top.views import TopOptions

    options = TopOptions(pid, None if directory is None else str(directory), once, as_json, interval, rank, wide)
    raise typer.Exit(run_top(options, Console()))
