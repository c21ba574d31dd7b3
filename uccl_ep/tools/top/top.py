"""`uccl-ep top`: view after view until somebody, or the job, ends it; for people, and for machines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from uccl_ep.errors import refuse
from uccl_ep.observe import rates, waits
from uccl_ep.observe.watch import Job, Watcher
from uccl_ep.tools.top.keys import Wait, keyboard
from uccl_ep.tools.top.views import TopOptions, nobody, render

WIDE = 160
"""Characters of a line that `wide` has room for when the output is no terminal, or one view."""
RESTART_S = 5.0
"""How long live views go on once all ranks have ended: a launcher may start new ones."""
_HELP = "q ends, w shows all columns or those that fit; --rank N adds a rank's peers; uccl-ep top --help explains"


def run_top(options: TopOptions, console: Console, out: TextIO | None = None) -> int:
    """Shows views until a key or an interrupt ends it, or until all ranks have ended; with `once`, one view.

    Returns:
        Exit status: 0; 1 when there is no rank to look at (with `once`, or where the output is no terminal).

    Raises:
        InvalidArgument: an option is not allowed, or there is no such process or directory.
    """
    if not 0.05 <= options.interval <= 3600:
        refuse("--interval", options.interval, "0.05 to 3600 seconds")
    watcher = Watcher(options.pid, options.directory)
    out = sys.stdout if out is None else out
    watcher.step()
    if options.wide and (options.once or not console.is_terminal):
        console.width = max(console.width, WIDE)
    if options.once:
        time.sleep(options.interval)
        jobs = watcher.step()
        if options.as_json:
            print(json.dumps(as_json(jobs, watcher.left_out)), file=out)
        else:
            console.print(render(jobs, watcher, options, console.width))
        return 0 if jobs else 1
    try:
        return _stream(options, watcher, out) if options.as_json else _run_live(options, watcher, console)
    except KeyboardInterrupt:  # how one leaves it
        return 0


def _stream(options: TopOptions, watcher: Watcher, out: TextIO) -> int:
    over = _Over(watcher)
    while not over():
        time.sleep(options.interval)
        print(json.dumps(as_json(watcher.step(), watcher.left_out)), file=out, flush=True)
    return 0


def _run_live(options: TopOptions, watcher: Watcher, console: Console) -> int:
    if not watcher.attached and not console.is_terminal:
        console.print(nobody(options), soft_wrap=True)
        return 1
    over, jobs = _Over(watcher), list[Job]()
    with keyboard() as wait, _screen(console) as show:
        show(render(jobs, watcher, options, console.width))
        while not over():
            key = _pressed(wait, options.interval)
            if key == "q":
                return 0
            if key == "w":
                options = replace(options, wide=not options.wide)
            else:
                jobs = watcher.step()
            show(render(jobs, watcher, options, console.width))
    if console.is_terminal:  # the screen with the last view has gone
        console.print(render(jobs, watcher, options, console.width))
    console.print(f"All ranks have ended. {nobody(options)}", soft_wrap=True, highlight=False)
    return 0


@contextmanager
def _screen(console: Console) -> Iterator[Callable[[RenderableType], None]]:
    """Shows view after view in one place; where the output is no terminal, one below the other."""
    if not console.is_terminal:
        yield console.print
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        yield lambda view: live.update(Group(view, Text(_HELP, "dim")), refresh=True)


def _pressed(wait: Wait, seconds: float) -> str:
    """The next key that means something; empty: none came in time."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        key = wait(left)
        if key in ("q", "w"):
            return key
    return ""


class _Over:
    """Whether all ranks have ended for good, and for RESTART_S seconds nobody has come in their place."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._since: float | None = None

    def __call__(self) -> bool:
        if not self._watcher.over:
            self._since = None
        elif self._since is None:
            self._since = time.monotonic()
        return self._since is not None and time.monotonic() - self._since >= RESTART_S


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
