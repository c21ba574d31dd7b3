"""The views of `uccl-ep top`: each rank, who waits for whom, and the slow rank first."""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from uccl_ep.membership.fault_errors import error_of
from uccl_ep.observe import waits
from uccl_ep.observe.waits import SHARE, Waits
from uccl_ep.observe.watch import Job, Watcher
from uccl_ep.tools.top.columns import Column, Line, fitted, mebibytes

WIDEST_MATRIX = 16
"""Ranks up to which the wait matrix is shown whole, where it has room; beyond, its greatest cells."""
_MOST_CELLS = 12
_ENDLESS = 10_000  # characters: wider than any matrix
_NOT_SEEN = "-"
RANK_COLUMNS = (
    Column("rank"),
    Column("pid", goes=9),
    Column("host", goes=1, left=True),
    Column("node", goes=2),
    Column("rows out", "MiB/s", goes=10),
    Column("rows in", "MiB/s", goes=8),
    Column("wire out", "MiB/s", goes=7),
    Column("writes", "/s", goes=6),
    Column("queued"),
    Column("open", goes=11),
    Column("in flight", "MiB", goes=5),
    Column("parked", goes=4),
    Column("stalls", "/s", goes=3),
    Column("waits", "% time"),
    Column("most for", left=True),
)
PEER_COLUMNS = (
    Column("peer"),
    Column("host", goes=1, left=True),
    Column("rows out", "MiB/s"),
    Column("rows in", "MiB/s", goes=8),
    Column("wire out", "MiB/s", goes=9),
    Column("arrivals", "/s", goes=5),
    Column("in flight", "writes", goes=6),
    Column("in flight", "MiB", goes=4),
    Column("parked", goes=3),
    Column("stalls", "/s", goes=2),
    Column("sending", "% time", goes=7),
    Column("arriving", "% time", goes=10),
    Column("waited", "% time"),
)


@dataclass(frozen=True)
class TopOptions:
    """What to look at and how; defaults are the command's.

    Attributes:
        pid, directory: whose ranks; see uccl_ep.observe.attach.find.
        once: one view and no more. as_json: one JSON object a view. interval: seconds between samples.
        rank: show this rank's peers too; -1: none's. wide: all columns, also where they have no room.
    """

    pid: int | None = None
    directory: str | None = None
    once: bool = False
    as_json: bool = False
    interval: float = 1.0
    rank: int = -1
    wide: bool = False


def render(jobs: Sequence[Job], watcher: Watcher, options: TopOptions, width: int) -> RenderableType:
    """A view for people.

    Args:
        width: characters of a line; tables leave out what has no room, unless the options want all.
    """
    room = None if options.wide else width
    parts: list[RenderableType] = []
    for job in jobs:
        parts += [_heading(job), rank_table(job, room)]
        if job.alive and (len(job.waits.ranks) > 1 or job.page.num_ranks > 1):
            parts.append(wait_table(job.waits, job.page.num_ranks, room))
        if options.rank in job.rates:
            parts.append(peer_table(job, options.rank, room))
    if not jobs:
        found = len(watcher.attached)
        coming = f"{found} rank(s) found; the first numbers come in {options.interval:g} s"
        parts.append(Text(coming if found else nobody(options)))
    parts += [Text(why, style="yellow") for why in watcher.left_out]
    return Group(*parts)


def nobody(options: TopOptions) -> str:
    """That there is no job, and where none was found."""
    if options.pid is not None:
        return f"No running uccl_ep job found in process {options.pid} and its children."
    if options.directory is not None:
        return f"No running uccl_ep job of this host found in directory {options.directory}."
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container's user often has a number only
        user = str(os.geteuid())
    return f"No running uccl_ep job found for user {user}."


def _heading(job: Job) -> Panel:
    page, told = job.page, waits.story(job.waits.suspects)
    nodes = len({node for rank, node in enumerate(page.node_of) if rank not in page.absent})
    title = f"buffer {page.job}: {len(page.present)} ranks on {nodes} node(s), {page.device}, {page.family}"
    if not job.alive:
        return Panel(Text("all ranks here have ended"), title=title, border_style="dim")
    if told:
        rest = [waits.story([s]) for s in job.waits.suspects[1:3]]
        text = Text(told, style="bold red")
        for line in rest:
            text.append(f"\nthen: {line}", style="yellow not bold")
        return Panel(text, title=title, title_align="left", border_style="red")
    quiet = f"nobody stands out by {SHARE:.0%} of the time. {_usual(job)}"
    return Panel(Text(quiet, style="green"), title=title, title_align="left", border_style="green")


def _usual(job: Job) -> str:
    """How long ranks wait on average, for whom each waits longest."""
    found = job.waits
    longest = found.waited.argmax(axis=1)
    rows = range(len(found.ranks))
    late, link = (float(matrix[rows, longest].mean()) / found.seconds for matrix in (found.late, found.link))
    here = f"The {len(found.ranks)} ranks here wait" if len(found.ranks) < len(job.page.present) else "Ranks wait"
    return f"{here} {late + link:.0%} of the time: {late:.0%} for others to begin, {link:.0%} for bytes under way"


def rank_table(job: Job, width: int | None = None) -> RenderableType:
    """One line a rank: what it sends, what is queued, and what it waits for. Below: who failed, in words.

    Args:
        width: characters of a line; None: all columns.
    """
    slow = job.waits.suspects[0].rank if job.waits.suspects else -1
    order = sorted(job.rates, key=lambda rank: (rank != slow, rank))
    lines = []
    for rank in order:
        style = "bold red" if rank == slow else "" if job.rates[rank].alive else "dim"
        lines.append(Line(_rank_cells(job, rank), style))
    faults = [(rank, _fault(job, rank)) for rank in order]
    told = (Text(f"rank {rank}: {fault}", style="bold red") for rank, fault in faults if fault)
    return Group(fitted("ranks", RANK_COLUMNS, lines, width), *told)


def _rank_cells(job: Job, rank: int) -> list[str]:
    r, page = job.rates[rank], job.pages[rank]
    who = [str(rank), str(job.pids[rank]), page.hostname, str(page.node_of[rank])]
    if not r.alive:
        return [*who, *[_NOT_SEEN] * (len(RANK_COLUMNS) - len(who) - 1), "ended"]
    waited = job.waits.waited[job.waits.row(rank)]
    longest = int(waited.argmax())
    seen = "wait_ns" in r.peers or waited.any()
    return [
        *who,
        mebibytes(r.total("bytes_sent")) if "bytes_sent" in r.peers else _NOT_SEEN,
        mebibytes(r.total("bytes_received")) if "bytes_received" in r.peers else _NOT_SEEN,
        mebibytes(r.total("write_bytes")),
        f"{r.total('writes'):.0f}",
        _NOT_SEEN if r.waiting is None else str(r.waiting),
        str(r.open),
        mebibytes(r.total("in_flight_bytes")),
        f"{r.total('parked'):.0f}",
        f"{r.total('stalls'):.0f}",
        _percent(waited.max() / job.waits.seconds) if seen else _NOT_SEEN,
        f"rank {longest}" if waited.max() >= SHARE * job.waits.seconds else "",
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.0f}"


def _fault(job: Job, rank: int) -> str:
    found, page = job.rates[rank], job.pages[rank]
    if found.fault is None:
        return ""
    return str(error_of(found.fault, rank, [page.host_name(r) for r in range(page.num_ranks)]))


def wait_table(found: Waits, num_ranks: int, width: int | None = None) -> RenderableType:
    """The wait matrix, in milliseconds a second: late, and what of it the link took.

    Args:
        width: characters of a line; None: any. A matrix that has no room, or is very large, becomes a list.
    """
    title = Text("waits, ms a second: late + slow link", style="italic")  # a table's own is folded at its width
    if num_ranks <= WIDEST_MATRIX:
        matrix = _matrix(found, num_ranks)
        if width is None or Console(width=_ENDLESS).measure(matrix).maximum <= width:
            return Group(title, matrix)
    table = Table("rank", "waits for", "late", "slow link")
    cells = sorted(((w, i, s) for (i, s), w in _cells(found)), reverse=True)[:_MOST_CELLS]
    scale = 1000 / found.seconds
    for _, i, s in cells:
        milliseconds = (f"{values[i, s] * scale:.0f}" for values in (found.late, found.link))
        table.add_row(str(found.ranks[i]), str(s), *milliseconds)
    return Group(title, table)


def _matrix(found: Waits, num_ranks: int) -> Table:
    table = Table()
    table.add_column("rank \\ for", justify="right")
    for rank in range(num_ranks):
        table.add_column(str(rank), justify="right")
    for i, rank in enumerate(found.ranks):
        table.add_row(str(rank), *(_cell(found, i, peer, 1000 / found.seconds) for peer in range(num_ranks)))
    return table


def _cells(found: Waits) -> list[tuple[tuple[int, int], float]]:
    rows, columns = found.waited.nonzero()
    return [((int(i), int(s)), float(found.waited[i, s])) for i, s in zip(rows, columns, strict=True)]


def _cell(found: Waits, i: int, peer: int, scale: float) -> Text:
    if found.ranks[i] == peer:
        return Text("")
    late, link = found.late[i, peer] * scale, found.link[i, peer] * scale
    share = found.waited[i, peer] / found.seconds
    style = "dim" if share < SHARE else "bold red" if late >= link else "bold magenta"
    return Text(f"{late:.0f}" if link < 0.5 else f"{late:.0f}+{link:.0f}", style=style)


def peer_table(job: Job, rank: int, width: int | None = None) -> RenderableType:
    """One rank's peers.

    Args:
        width: characters of a line; None: all columns.
    """
    r, page = job.rates[rank], job.pages[rank]
    waited = job.waits.waited[job.waits.row(rank)] / job.waits.seconds

    def of(name: str, peer: int) -> float:
        return float(r.peers[name][peer]) if name in r.peers else 0.0

    lines = []
    for peer in page.present:
        if peer == rank or not any(values[peer] for values in r.peers.values()):
            continue
        cells = [
            str(peer),
            page.host_name(peer),
            mebibytes(of("bytes_sent", peer)),
            mebibytes(of("bytes_received", peer)),
            mebibytes(of("write_bytes", peer)),
            f"{of('arrivals', peer):.0f}",
            f"{of('in_flight', peer):.0f}",
            mebibytes(of("in_flight_bytes", peer)),
            f"{of('parked', peer):.0f}",
            f"{of('stalls', peer):.0f}",
            _percent(of("sending_ns", peer)),
            _percent(of("arriving_ns", peer)),
            _percent(waited[peer]),
        ]
        lines.append(Line(cells))
    return fitted(f"peers of rank {rank}", PEER_COLUMNS, lines, width)
