"""What `uccl-ep top` shows: each rank, who waits for whom, and the slow rank first."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from uccl_ep.errors import refuse
from uccl_ep.membership.fault_errors import error_of
from uccl_ep.observe import rates, waits
from uccl_ep.observe.waits import SHARE, Waits
from uccl_ep.observe.watch import Job, Watcher
from uccl_ep.sizes import format_bytes

WIDEST_MATRIX = 16
"""Ranks up to which the wait matrix is shown whole; beyond, its greatest cells."""
_MOST_CELLS = 12
_NOT_SEEN = "-"


@dataclass(frozen=True)
class TopOptions:
    """What to look at and how; defaults are the command's.

    Attributes:
        pid, directory: whose ranks; see uccl_ep.observe.attach.find.
        once: one view and no more. as_json: one JSON object a view. interval: seconds between samples.
        rank: show this rank's peers too; -1: none's.
    """

    pid: int | None = None
    directory: str | None = None
    once: bool = False
    as_json: bool = False
    interval: float = 1.0
    rank: int = -1


def run_top(options: TopOptions, console: Console, out: TextIO | None = None) -> int:
    """Shows views until it is interrupted, or one.

    Returns:
        Exit status: 0; 1 when there is no rank to look at (with `once`).

    Raises:
        InvalidArgument: an option is not allowed, or there is no such process or directory.
    """
    if not 0.05 <= options.interval <= 3600:
        refuse("--interval", options.interval, "0.05 to 3600 seconds")
    watcher = Watcher(options.pid, options.directory)
    out = sys.stdout if out is None else out
    watcher.step()
    if options.once:
        time.sleep(options.interval)
        jobs = watcher.step()
        if options.as_json:
            print(json.dumps(as_json(jobs, watcher.left_out)), file=out)
        else:
            console.print(render(jobs, watcher, options))
        return 0 if jobs else 1
    try:
        _run_live(options, watcher, console, out)
    except KeyboardInterrupt:  # how one leaves it
        pass
    return 0


def _run_live(options: TopOptions, watcher: Watcher, console: Console, out: TextIO) -> None:
    if options.as_json:
        while True:
            time.sleep(options.interval)
            print(json.dumps(as_json(watcher.step(), watcher.left_out)), file=out, flush=True)
    with Live(render([], watcher, options), console=console, screen=console.is_terminal, auto_refresh=False) as live:
        while True:
            time.sleep(options.interval)
            live.update(render(watcher.step(), watcher, options), refresh=True)


def as_json(jobs: Sequence[Job], left_out: Sequence[str]) -> dict[str, Any]:
    """A view for machines: counters per second, the wait matrix, and `slow`, the first suspect of each job or null."""
    return {
        "jobs": [
            {
                "buffer": job.page.job,
                "alive": job.alive,
                "num_ranks": job.page.num_ranks,
                "absent": list(job.page.absent),
                "node_of": list(job.page.node_of),
                "family": job.page.family,
                "device": job.page.device,
                "slow": vars(job.waits.suspects[0]) if job.waits.suspects else None,
                "story": waits.story(job.waits.suspects),
                "waits": waits.as_json(job.waits),
                "ranks": [
                    {"pid": job.pids[rank], "host": job.pages[rank].hostname, **rates.as_json(found)}
                    for rank, found in job.rates.items()
                ],
            }
            for job in jobs
        ],
        "left_out": list(left_out),
    }


def render(jobs: Sequence[Job], watcher: Watcher, options: TopOptions) -> RenderableType:
    """A view for people."""
    parts: list[RenderableType] = []
    for job in jobs:
        parts += [_heading(job), rank_table(job)]
        if len(job.waits.ranks) > 1 or job.page.num_ranks > 1:
            parts.append(wait_table(job.waits, job.page.num_ranks))
        if options.rank in job.rates:
            parts.append(peer_table(job, options.rank))
    if not jobs:
        parts.append(_nobody(watcher, options))
    parts += [Text(why, style="yellow") for why in watcher.left_out]
    return Group(*parts)


def _nobody(watcher: Watcher, options: TopOptions) -> Text:
    if watcher.attached:
        return Text(f"{len(watcher.attached)} rank(s) found; the first numbers come in {options.interval:g} s")
    where = f"process {options.pid} and its children" if options.pid is not None else f"directory {options.directory}"
    if options.pid is None and options.directory is None:
        where = "the processes of this user"
    return Text(f"no rank of uccl_ep among {where} on this host: is a Buffer alive, and do you look as its user?")


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


def rank_table(job: Job) -> RenderableType:
    """One line a rank: what it sends, what is queued, and what it waits for. Below: who ended or failed, in words."""
    table = Table(title="ranks", title_justify="left")
    names = "rank,pid,host,node,rows out,in,wire out,writes,queued,open,in flight,parked,stalls,waits,most for"
    for name in names.split(","):
        left = name in ("host", "most for")
        table.add_column(name, justify="left" if left else "right", no_wrap=True, overflow="ellipsis")
    slow = job.waits.suspects[0].rank if job.waits.suspects else -1
    order = sorted(job.rates, key=lambda rank: (rank != slow, rank))
    for rank in order:
        r, page = job.rates[rank], job.pages[rank]
        waited = job.waits.waited[job.waits.row(rank)]
        longest = int(waited.argmax())
        seen = "wait_ns" in r.peers or waited.any()
        table.add_row(
            str(rank),
            str(job.pids[rank]),
            page.hostname,
            str(page.node_of[rank]),
            _speed(r.total("bytes_sent")) if "bytes_sent" in r.peers else _NOT_SEEN,
            _speed(r.total("bytes_received")) if "bytes_received" in r.peers else _NOT_SEEN,
            _speed(r.total("write_bytes")),
            f"{r.total('writes'):.0f}/s",
            _NOT_SEEN if r.waiting is None else str(r.waiting),
            str(r.open),
            format_bytes(int(r.total("in_flight_bytes"))),
            f"{r.total('parked'):.0f}",
            f"{r.total('stalls'):.0f}/s",
            f"{waited.max() / job.waits.seconds:.0%}" if seen else _NOT_SEEN,
            f"rank {longest}" if waited.max() >= SHARE * job.waits.seconds else "",
            style="bold red" if rank == slow else "dim" if not r.alive else "",
        )
    states = [(rank, _state(job, rank)) for rank in order]
    return Group(table, *(Text(f"rank {rank}: {state}", style="bold red") for rank, state in states if state))


def _state(job: Job, rank: int) -> str:
    found, page = job.rates[rank], job.pages[rank]
    if found.fault is not None:
        names = [page.host_name(r) for r in range(page.num_ranks)]
        return str(error_of(found.fault, rank, names))
    return "" if found.alive else "gone"


def wait_table(found: Waits, num_ranks: int) -> RenderableType:
    """The wait matrix, in milliseconds a second: late, and what of it the link took."""
    scale = 1000 / found.seconds
    title = Text("waits, ms a second: late + slow link", style="italic")  # a table's own is folded at its width
    if num_ranks > WIDEST_MATRIX:
        table = Table("rank", "waits for", "late", "slow link")
        cells = sorted(((w, i, s) for (i, s), w in _cells(found)), reverse=True)[:_MOST_CELLS]
        for _, i, s in cells:
            milliseconds = (f"{matrix[i, s] * scale:.0f}" for matrix in (found.late, found.link))
            table.add_row(str(found.ranks[i]), str(s), *milliseconds)
        return Group(title, table)
    table = Table()
    table.add_column("rank \\ for", justify="right")
    for rank in range(num_ranks):
        table.add_column(str(rank), justify="right")
    for i, rank in enumerate(found.ranks):
        table.add_row(str(rank), *(_cell(found, i, peer, scale) for peer in range(num_ranks)))
    return Group(title, table)


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


def peer_table(job: Job, rank: int) -> Table:
    """One rank's peers."""
    r, page = job.rates[rank], job.pages[rank]
    names = "peer,host,rows out,in,wire out,arrivals,in flight,parked,stalls,sending,arriving,waited"
    table = Table(*names.split(","), title=f"peers of rank {rank}", title_justify="left")
    waited = job.waits.waited[job.waits.row(rank)] / job.waits.seconds

    def of(name: str, peer: int) -> float:
        return float(r.peers[name][peer]) if name in r.peers else 0.0

    for peer in page.present:
        if peer == rank or not any(values[peer] for values in r.peers.values()):
            continue
        table.add_row(
            str(peer),
            page.host_name(peer),
            _speed(of("bytes_sent", peer)),
            _speed(of("bytes_received", peer)),
            _speed(of("write_bytes", peer)),
            f"{of('arrivals', peer):.0f}/s",
            f"{of('in_flight', peer):.0f} ({format_bytes(int(of('in_flight_bytes', peer)))})",
            f"{of('parked', peer):.0f}",
            f"{of('stalls', peer):.0f}/s",
            f"{of('sending_ns', peer):.0%}",
            f"{of('arriving_ns', peer):.0%}",
            f"{waited[peer]:.0%}",
        )
    return table


def _speed(bytes_per_second: float) -> str:
    return f"{format_bytes(int(bytes_per_second))}/s" if bytes_per_second else "0"
