"""A Story for people: its sentences, and a table of the ranks."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from uccl_ep.recorder.journal import KILLED
from uccl_ep.recorder.record import printable
from uccl_ep.tools.explain.advice import advise
from uccl_ep.tools.explain.story import Story, tell, whom


def show(story: Story, console: Console, quiet: bool = False) -> None:
    """Prints a story and what to do; sentences that name the rank that it leads to first stand out.

    Args:
        quiet: without the table of ranks.
    """
    ranks = "1 rank" if story.num_ranks == 1 else f"{story.num_ranks} ranks"
    records = "1 record" if len(story.ranks) == 1 else f"{len(story.ranks)} records"
    console.print(Text(f"job {story.job}: {ranks}, {records}", style="dim"))
    for number, sentence in enumerate(tell(story)):
        console.print(
            Text(printable(sentence), style="bold red" if number == 0 and story.root_cause is not None else "")
        )
    if not quiet:
        console.print(_table(story))
    console.print(Text("What to do", "bold"))
    steps = Table.grid(padding=(0, 1))
    for step in advise(story):
        steps.add_row("-", Text(printable(step)))
    console.print(steps)


def _table(story: Story) -> Table:
    table = Table()
    for heading in ("rank", "host", "call", "since", "waited for", "raised"):
        table.add_column(heading, overflow="fold")
    waits = {wait.rank: wait for wait in story.waits}
    gone = {loss.rank: loss for loss in story.lost}
    rows = {rank.rank: rank for rank in story.ranks}
    for rank in sorted({*rows, *gone, *story.missing}):
        style = "red" if rank == story.root_cause else ""
        if rank not in rows:
            state = f"lost T{gone[rank].at_s:+.3f} s" if rank in gone else "no record"
            host = printable(gone[rank].host) if rank in gone else ""
            table.add_row(str(rank), Text(host), state, "", "", "", style=style)
            continue
        row, wait = rows[rank], waits.get(rank)
        doing = row.doing if row.open else f"none (last: {row.doing})"
        told = "" if wait is None else f"{whom(wait)} in {wait.phase}"
        raised = "killed" if row.reason == KILLED else row.error.partition(":")[0]
        cells = (str(rank), row.host, doing, f"T{row.since_s:+.3f} s", told, raised)
        table.add_row(*(Text(printable(cell)) for cell in cells), style=style)
    return table
