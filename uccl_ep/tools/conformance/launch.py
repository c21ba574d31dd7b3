"""Starts the ranks of a conformance run, follows them, and starts new ones after a check that they did not survive."""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import queue
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from rich.console import Console

from uccl_ep.errors import UcclEpError, refuse
from uccl_ep.tools.conformance.catalogue import chosen
from uccl_ep.tools.conformance.options import ConformanceOptions
from uccl_ep.tools.conformance.registry import Check
from uccl_ep.tools.conformance.report import Following, print_json, print_table
from uccl_ep.tools.conformance.runner import FAILED, Outcome, check_nodes, is_ours, run_checks

_TIMEOUT_S = "30"  # of our own waits, unless the caller has set it: a failed rank must not cost 100 s a check
_START_SECONDS = 300.0  # imports of several ranks on a busy machine
_POLL_SECONDS = 0.2


def run_rank(rank: int, options: ConformanceOptions, store: str, names: Sequence[str], events: Any) -> None:
    """Entry of a spawned rank: runs the named checks; rank 0 puts (event, value) into the queue, others only errors."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.setdefault("UCCL_EP_TIMEOUT_S", _TIMEOUT_S)
    if options.nodes > 1:
        os.environ["UCCL_EP_RANKS_PER_NODE"] = str(options.ranks_per_node)
    try:
        world, about = _join(rank, options, store)
    except Exception as error:  # the parent prints it; a trace per rank would bury it
        events.put(("error", f"rank {rank}: {type(error).__name__}: {error}"))
        return
    tell = (lambda event, value: events.put((event, value))) if rank == 0 else (lambda event, value: None)
    tell("about", about)
    by_name = {check.name: check for check in chosen()}
    run_checks(world, [by_name[name] for name in names], tell)
    tell("done", None)


def _end_with_parent() -> None:
    """A rank must not stay behind when whoever started the run was killed: it might wait for peers for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)


def _join(rank: int, options: ConformanceOptions, store: str) -> tuple[Any, dict[str, str]]:
    import torch
    import torch.distributed as dist

    from uccl_ep.tools.conformance.world import RANKS_OF_A_NODE, World

    torch.set_num_threads(1)
    on_gpu = options.device == "cuda" or (options.device == "auto" and torch.cuda.is_available())
    if on_gpu:
        torch.cuda.set_device(rank % torch.cuda.device_count())
    module = importlib.import_module(options.module)
    check_nodes(module, options.nodes)
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=options.ranks)
    per_node = options.ranks_per_node if is_ours(module) else RANKS_OF_A_NODE
    world = World(module, dist.group.WORLD, "cuda" if on_gpu else "cpu", per_node, options.seed)
    where = getattr(module, "__file__", None) or str(getattr(module.__spec__, "origin", "unknown"))
    about = {"version": str(getattr(module, "__version__", "unknown")), "from": where, "device": str(world.device)}
    return world, about


class _Ranks:
    """The processes of one start."""

    def __init__(self, options: ConformanceOptions, names: Sequence[str]) -> None:
        context = multiprocessing.get_context("spawn")
        self.events = context.Queue()
        self._folder = tempfile.TemporaryDirectory(prefix="uccl-ep-conformance-")
        store = os.path.join(self._folder.name, "store")
        self.processes = [
            context.Process(target=run_rank, args=(rank, options, store, list(names), self.events), daemon=True)
            for rank in range(options.ranks)
        ]
        for process in self.processes:
            process.start()

    def next_event(self, seconds: float) -> tuple[str, Any]:
        """The next event; ("lost", why) when a rank has ended badly or none came in time."""
        deadline = time.monotonic() + seconds
        while True:
            codes = [process.exitcode for process in self.processes]  # before the queue: what a rank said comes first
            try:
                event: tuple[str, Any] = self.events.get(timeout=_POLL_SECONDS)
                return event
            except queue.Empty:
                pass
            bad = [f"rank {rank} ended with exit status {code}" for rank, code in enumerate(codes) if code]
            if bad:
                return "lost", "; ".join(bad)
            if time.monotonic() > deadline:
                return "lost", f"the ranks did not come back within {seconds:.0f} s"

    def end(self) -> None:
        """Ends whatever still runs."""
        for process in self.processes:
            process.join(5.0 if all(p.exitcode in (None, 0) for p in self.processes) else 0.0)
            if process.is_alive():
                process.kill()
            process.join()
        self.events.cancel_join_thread()
        self._folder.cleanup()


def _follow(options: ConformanceOptions, checks: list[Check], following: Following) -> list[Outcome]:
    """One start of the ranks, until they are done or lost; outcomes of the checks that were begun.

    Raises:
        UcclEpError: the ranks could not begin.
    """
    outcomes: list[Outcome] = []
    running: Check | None = None
    ranks = _Ranks(options, [check.name for check in checks])
    try:
        while True:
            event, value = ranks.next_event(_START_SECONDS if running is None else options.check_seconds)
            if event == "about":
                following.about.update(value)
            elif event == "begin":
                running = next(check for check in checks if check.name == value)
                following.begin(running)
            elif event == "end":
                outcomes.append(value)
                following.end(value)
            elif event == "done":
                return outcomes
            elif running is None or len(outcomes) == len(checks):
                if outcomes:
                    return outcomes  # lost on the way out: every check has been told
                raise UcclEpError(f"the ranks could not start: {value}")
            else:
                lost = running if running.name not in {o.name for o in outcomes} else checks[len(outcomes)]
                outcomes.append(Outcome.of(lost, FAILED, str(value), 0.0))
                following.end(outcomes[-1])
                return outcomes
    finally:
        ranks.end()


def run_conformance(options: ConformanceOptions, as_json: bool, console: Console, quiet: bool = False) -> int:
    """Runs the checks, prints the table (or JSON); returns 0 when everything required holds, else 1.

    Raises:
        InvalidArgument: the options cannot run, or there is no such module.
        UcclEpError: the ranks could not start.
    """
    options.check()
    if importlib.util.find_spec(options.module.partition(".")[0]) is None:
        hint = "`uccl-ep run -- -m uccl_ep conformance deep_ep` checks uccl_ep under that name."
        refuse("module", options.module, "a module that can be imported here", hint)
    checks = chosen(options.only)
    outcomes: list[Outcome] = []
    with ExitStack() as stack:
        following = stack.enter_context(Following(len(checks), show=not (as_json or quiet)))
        while len(outcomes) < len(checks):
            outcomes += _follow(options, checks[len(outcomes) :], following)
    if as_json:
        print_json(options, following.about, outcomes, console)
    else:
        print_table(options, following.about, outcomes, console, only_failed=quiet)
    return int(any(outcome.broken for outcome in outcomes))
