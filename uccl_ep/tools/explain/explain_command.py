"""The command `uccl-ep explain`; what it does is in story.py, which is loaded when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def explain(
    dump: Annotated[
        list[Path],
        typer.Argument(help="Flight records of one or several ranks, or folders of them.", metavar="DUMP..."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Tell from flight records what happened: who was lost, who waited for whom since when, what each rank was doing.

    A rank writes its record when a call raises PeerTimeout or PeerLost; the exception names the file, and
    UCCL_EP_FLIGHT_RECORDER the folder for them. Collect those of all hosts in one folder: the more ranks, the more can
    be said. All times are on one clock, in seconds from the first sign of trouble (T); between hosts it is made from
    messages that both ends have recorded. Of several jobs in a folder the last one is told. What is no record, damaged,
    or a link is skipped, and named on stderr; with no record at all the status is 2.

    Examples:

      UCCL_EP_FLIGHT_RECORDER=records torchrun ... ; uccl-ep explain records

      uccl-ep explain records/5f3a12c8-rank0.uccl-ep records/5f3a12c8-rank3.uccl-ep

      uccl-ep explain records --json
    """
    import json

    from rich.console import Console

    from uccl_ep.recorder.find import read_all
    from uccl_ep.tools.explain.show import show
    from uccl_ep.tools.explain.story import read_story

    story = read_story(read_all(dump))
    if as_json:
        typer.echo(json.dumps(story.plain(), indent=2))
    else:
        show(story, Console())
