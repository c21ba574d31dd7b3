"""The command `uccl-ep explain`; what it does is in story.py, which is loaded when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def explain(
    dump: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Flight records of one or several ranks, or folders of them. Default: where ranks leave them.",
            metavar="[DUMP...]",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Without the table of ranks.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Tell from flight records what happened: who was lost, who waited for whom since when, what each rank was doing.

    A rank writes its record when a call raises PeerTimeout or PeerLost; the exception names the file, and
    UCCL_EP_FLIGHT_RECORDER the folder for them. Collect those of all hosts in one folder: the more ranks, the more can
    be said. All times are on one clock, in seconds from the first sign of trouble (T); between hosts it is made from
    messages that both ends have recorded. Of several jobs in a folder the last one is told. What is no record, damaged,
    or a link is skipped, and named on stderr; with no record at all the status is 2.

    A rank that was killed has written none: its journal, in memory of its host, is read in its place. So are those of
    ranks that still run, so that a job that hangs can be asked.

    Without DUMP the last job is told of which records lie where ranks leave them: UCCL_EP_FLIGHT_RECORDER, or this
    user's folder among temporary files. The end says what to do.

    Examples:

      uccl-ep explain

      UCCL_EP_FLIGHT_RECORDER=records torchrun ... ; uccl-ep explain records

      uccl-ep explain records/5f3a12c8-rank0.uccl-ep records/5f3a12c8-rank3.uccl-ep

      uccl-ep explain records --json
    """
    import json

    from rich.console import Console

    from uccl_ep.recorder.find import read_all, usual_folder
    from uccl_ep.settings import settings
    from uccl_ep.tools.explain.advice import advise
    from uccl_ep.tools.explain.show import show
    from uccl_ep.tools.explain.story import read_story

    folder = usual_folder(settings())
    story = read_story(read_all(dump or [folder]))
    if as_json:
        typer.echo(json.dumps({**story.plain(), "what_to_do": advise(story)}, indent=2))
        return
    if not dump:
        typer.echo(f"the newest job of those in {folder}")
    show(story, Console(), quiet)
