"""`uccl-ep simulate`: whole runs of many ranks on one thread, each decided by one seed, over a simulated network.

The runs are native (proxy/simulation); this file deals seeds out to threads, adds up and shows. Loads no torch.
"""

from __future__ import annotations

import json
import shlex
import threading
import time
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from uccl_ep._native import MAX_RANKS, MAX_RANKS_PER_NODE
from uccl_ep.errors import NotSupported, one_of, refuse

try:
    import uccl_ep._simulation as _simulation
except ModuleNotFoundError:
    raise NotSupported(
        "uccl-ep simulate needs the module uccl_ep._simulation, which `make setup` builds in a checkout and no wheel "
        "holds; clone the repository, run `make setup` there, then `.venv/bin/uccl-ep simulate`"
    ) from None

PROFILES = ("any", "rc", "srd")
MOST_FAILURES = 5
"""A run ends after so many failing seeds: the first few say it all."""

_BATCH = 32  # seeds that a thread takes at a time: about a quarter of a second
_FOREVER = 1 << 62
_LARGEST = ("deepest", "most_ranks")


@dataclass(frozen=True)
class SimulateOptions:
    """What `uccl-ep simulate` was asked for. `seeds` None: as many as the minutes allow."""

    seeds: int | None = 1000
    first: int = 1
    jobs: int = 1
    minutes: float | None = None
    profile: str = "any"
    ranks: int = 0
    nodes: int = 0
    """Both 0: the seed chooses."""

    def check(self) -> None:
        """Raises InvalidArgument for a value that cannot be."""
        if self.profile not in PROFILES:
            refuse("--profile", self.profile, one_of(PROFILES))
        if self.jobs < 1:
            refuse("--jobs", self.jobs, "1 or more")
        if self.first < 0:
            refuse("--first", self.first, "0 or more")
        if self.seeds is not None and self.seeds < 1:
            refuse("--seeds", self.seeds, "1 or more")
        if self.minutes is not None and not self.minutes > 0:
            refuse("--minutes", self.minutes, "more than 0")
        if (self.ranks or self.nodes) and not self._can_be_placed():
            allowed = f"2 to {MAX_RANKS} and --nodes so many that each has 1 to {MAX_RANKS_PER_NODE} of them"
            refuse("--ranks", f"{self.ranks} with --nodes {self.nodes}", allowed)

    def _can_be_placed(self) -> bool:
        if not 2 <= self.ranks <= MAX_RANKS or not 1 <= self.nodes <= self.ranks:
            return False
        return self.ranks <= self.nodes * MAX_RANKS_PER_NODE

    def wish(self) -> tuple[str, int, int]:
        """What the native module is told besides seeds."""
        return self.profile, self.ranks, self.nodes


@dataclass
class SimulationResult:
    """Sums over all runs; `deepest` and `most_ranks` are the largest of any run."""

    seeds: int = 0
    low_latency: int = 0
    lethal: int = 0
    absences: int = 0
    rows: int = 0
    writes: int = 0
    steps: int = 0
    virtual_ns: int = 0
    overtakes: int = 0
    deepest: int = 0
    parked: int = 0
    faults: int = 0
    finished: int = 0
    failed: int = 0
    dead: int = 0
    most_ranks: int = 0
    seconds: float = 0.0
    failures: list[tuple[int, str]] = field(default_factory=list)

    def add(self, totals: Any) -> None:
        """Adds a batch (_simulation.Totals)."""
        for one in fields(self):
            if one.name in ("seconds", "failures"):
                continue
            mine, theirs = getattr(self, one.name), getattr(totals, one.name)
            setattr(self, one.name, max(mine, theirs) if one.name in _LARGEST else mine + theirs)
        self.failures += totals.failures


class _Dealer:
    """Deals seeds out to threads and collects their totals."""

    def __init__(self, options: SimulateOptions) -> None:
        self.options = options
        self.result = SimulationResult()
        self.stop = _simulation.Stop()
        self.error: BaseException | None = None
        self._next = options.first
        self._end = _FOREVER if options.seeds is None else options.first + options.seeds
        self._lock = threading.Lock()

    def work(self) -> None:
        """A thread's loop: batches until there are no more seeds or `stop` is set."""
        try:
            while (batch := self._take()) is not None:
                totals = _simulation.simulate(batch[0], batch[1], *self.options.wish(), self.stop)
                with self._lock:
                    self.result.add(totals)
                if totals.seeds < batch[1] or len(self.result.failures) >= MOST_FAILURES:
                    self.halt()
        except BaseException as error:
            self.error = error
            self.halt()

    def halt(self) -> None:
        """No thread begins another seed."""
        self._end = 0
        self.stop.set()

    def _take(self) -> tuple[int, int] | None:
        with self._lock:
            count = min(_BATCH, self._end - self._next)
            if count <= 0:
                return None
            self._next += count
            return self._next - count, count


def simulate(options: SimulateOptions, progress: Progress | None = None) -> SimulationResult:
    """Runs the seeds. An interrupt ends it early, with what was done until then in the result.

    Args:
        options: what to run.
        progress: a bar to move, or None.

    Raises:
        InvalidArgument: an option that cannot be.
    """
    options.check()
    dealer = _Dealer(options)
    began = time.monotonic()
    deadline = None if options.minutes is None else began + 60 * options.minutes
    task = None if progress is None else progress.add_task("seeds", total=options.seeds)
    threads = [threading.Thread(target=dealer.work, name=f"simulate-{i}") for i in range(options.jobs)]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            for thread in threads:
                thread.join(0.1)
            if progress is not None and task is not None:
                progress.update(task, completed=dealer.result.seeds)
            if deadline is not None and time.monotonic() > deadline:
                dealer.halt()
    finally:
        dealer.halt()
        for thread in threads:
            thread.join()
    if dealer.error is not None:
        raise dealer.error
    dealer.result.failures.sort()
    dealer.result.seconds = time.monotonic() - began
    return dealer.result


def replay_command(seed: int, options: SimulateOptions) -> str:
    """The command line that runs one seed again."""
    command = ["uccl-ep", "simulate", "--seed", str(seed)]
    if options.profile != "any":
        command += ["--profile", options.profile]
    if options.ranks:
        command += ["--ranks", str(options.ranks), "--nodes", str(options.nodes)]
    return shlex.join(command)


def summary(result: SimulationResult) -> Table:
    """The totals, as a table."""
    table = Table(show_header=False, box=None)
    rate = result.seeds / result.seconds if result.seconds else 0.0
    rows = (
        ("seeds", f"{result.seeds:,} ({rate:,.0f} a second; {result.low_latency:,} of low latency)"),
        ("rows checked", f"{result.rows:,}"),
        ("writes", f"{result.writes:,}"),
        ("reorders seen", f"{result.overtakes:,} writes arrived before an earlier one of their lane"),
        ("deepest reorder", f"{result.deepest:,} earlier writes overtaken; {result.parked:,} chunks waited their turn"),
        ("faults injected", f"{result.faults:,} ({result.lethal:,} runs with a lethal one)"),
        ("ranks left out", f"in {result.absences:,} runs ranks left or were lost, and the others went on"),
        ("ranks", f"{result.finished:,} finished, {result.failed:,} reported a fault, {result.dead:,} were killed"),
        ("most ranks", f"{result.most_ranks}"),
        ("virtual time", f"{result.virtual_ns / 1e9:,.1f} s in {result.seconds:,.1f} s"),
        ("failing seeds", f"{len(result.failures)}"),
    )
    for name, value in rows:
        table.add_row(name, value)
    return table


def as_json(options: SimulateOptions, result: SimulationResult) -> str:
    """One JSON object: the options, the totals, and each failing seed with its replay command."""
    totals = {one.name: getattr(result, one.name) for one in fields(result) if one.name != "failures"}
    failures = [{"seed": seed, "what": what, "replay": replay_command(seed, options)} for seed, what in result.failures]
    return json.dumps({"options": vars(options), "totals": totals, "failures": failures}, indent=2)


def show_failure(seed: int, what: str, options: SimulateOptions, console: Console) -> None:
    """A failing seed: what is wrong, how to run it again, and the shortened run."""
    console.print(f"[bold red]seed {seed} fails:[/] {escape(what)}", highlight=False, soft_wrap=True)
    console.print(f"replay: {replay_command(seed, options)}", markup=False, highlight=False, soft_wrap=True)
    console.print(_simulation.explain(seed, *options.wish()), markup=False, highlight=False, soft_wrap=True)


def run_one(seed: int, options: SimulateOptions, console: Console) -> int:
    """Replays one seed twice (a run must repeat to the bit) and explains its failure. Returns the exit status."""
    options = replace(options, seeds=1, first=seed)
    options.check()
    wish = options.wish()
    console.print(f"seed {seed}: {_simulation.describe(seed, *wish)}", highlight=False, soft_wrap=True)
    stop = _simulation.Stop()
    first, second = (_simulation.simulate(seed, 1, *wish, stop) for _ in range(2))
    console.print(
        f"{first.rows:,} rows checked, {first.writes:,} writes, {first.overtakes:,} reorders, {first.steps:,} steps, "
        f"{first.virtual_ns / 1e6:,.3f} ms of virtual time, trace {first.trace:016x}",
        highlight=False,
    )
    if first.trace != second.trace:
        console.print(f"[bold red]the second run differs:[/] trace {second.trace:016x}", highlight=False)
        return 1
    if not first.failures:
        console.print("passes")
        return 0
    show_failure(seed, first.failures[0][1], options, console)
    return 1


def run_simulate(options: SimulateOptions, out: Path | None, console: Console, json_only: bool = False) -> int:
    """Runs the seeds under a progress bar, prints the totals and the first failure. Returns the exit status.

    Args:
        out: a file for the JSON object. json_only: print that object and nothing else.
    """
    options.check()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=json_only) as progress:
        result = simulate(options, progress)
    if out is not None:
        out.write_text(as_json(options, result) + "\n")
    if json_only:
        console.file.write(as_json(options, result) + "\n")
        return 1 if result.failures else 0
    console.print(summary(result))
    for seed, what in result.failures[1:]:
        console.print(f"seed {seed} fails: {what}", markup=False, highlight=False, soft_wrap=True)
    if result.failures:
        show_failure(*result.failures[0], options, console)
        return 1
    return 0
