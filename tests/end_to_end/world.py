"""Worlds: how many ranks, on which nodes, over which network; run with ranks as threads or as processes of a Crew."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from uccl_ep.errors import UcclEpError
from uccl_ep.group.thread_group import ThreadGroup
from uccl_ep.settings import settings

Body = Callable[..., Any]  # body(group, *arguments), run on every rank
_START_S = 60.0  # a worker process imports torch


@dataclass(frozen=True)
class World:
    """A group of ranks; every field after `ranks` is the UCCL_EP_* variable of that name."""

    ranks: int = 4
    ranks_per_node: int = 0
    transport: str = "auto"
    proxy: str = "thread"
    proxy_threads: int = 1
    rings: int = 2
    ring_capacity: int = 1024
    max_in_flight: int = 64
    host_blocks: int = 0
    host_threads: int = 1
    shuffle_seed: int = 0
    timeout_s: float = 20.0  # many ranks share few cores; a broken protocol still ends well before the test does

    @property
    def node_sizes(self) -> int | None:
        """What the reference calls ranks_per_node."""
        return self.ranks_per_node or None

    @contextmanager
    def environment(self) -> Iterator[None]:
        """UCCL_EP_* of this process as the world says, and as they were before afterwards."""
        before = {name: value for name, value in os.environ.items() if name.startswith("UCCL_EP_")}
        wanted = {f"UCCL_EP_{f.name.upper()}": str(getattr(self, f.name)) for f in fields(self) if f.name != "ranks"}
        _replace_environment(wanted)
        try:
            yield
        finally:
            _replace_environment(before)


def _replace_environment(wanted: dict[str, str]) -> None:
    for name in [n for n in os.environ if n.startswith("UCCL_EP_")]:
        del os.environ[name]
    os.environ.update(wanted)
    settings.cache_clear()


def as_threads(world: World, body: Body, *arguments: Any) -> list[Any]:
    """body(group, *arguments) on every rank, each a thread of this process; results by rank.

    Raises:
        Exception: what a rank raised; a wrong result before the timeouts that it makes others run into.
    """
    results: list[Any] = [None] * world.ranks
    errors: list[BaseException] = []

    def run(group: ThreadGroup) -> None:
        try:
            results[group.rank()] = body(group, *arguments)
        except BaseException as error:
            error.add_note(f"on rank {group.rank()}") if hasattr(error, "add_note") else None
            errors.append(error)
            group.leave()

    with world.environment():
        threads = [threading.Thread(target=run, args=(group,)) for group in ThreadGroup.create(world.ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise min(errors, key=lambda e: isinstance(e, (UcclEpError, threading.BrokenBarrierError)))
    return results


class Crew:
    """Processes that play ranks 0 to `size` - 1 of gloo groups, kept between runs: importing torch takes seconds."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._workers: list[tuple[Any, Connection]] = []
        self._lock = threading.Lock()

    def run(self, world: World, body: Body, *arguments: Any, limit_s: float = 50.0) -> list[Any]:
        """As `as_threads`, with processes. `body` and what it takes and returns must be picklable.

        Raises:
            AssertionError: a rank failed; the text holds every failed rank's traceback. The crew then starts anew.
        """
        with self._lock:
            self._start()
            chosen = self._workers[: world.ranks]
            for _, pipe in chosen:
                pipe.send((world, body, arguments))
            answers = _answers([pipe for _, pipe in chosen], limit_s)
            if failed := [f"rank {r}: {a[1]}" for r, a in sorted(answers.items()) if not a[0]]:
                self.close()
                raise AssertionError("\n".join(failed))
            return [answers[rank][1] for rank in range(world.ranks)]

    def _start(self) -> None:
        if self._workers:
            return
        # Forked from a process that has imported torch but runs nothing yet.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "uccl_ep.buffer", "uccl_ep.reference.calls", "torch.distributed"])
        store = tempfile.mkdtemp(prefix="uccl-ep-crew-")
        for rank in range(self.size):
            here, there = context.Pipe()
            worker = context.Process(target=_serve, args=(rank, self.size, f"{store}/store", there), daemon=False)
            worker.start()
            there.close()
            self._workers.append((worker, here))
        started = _answers([pipe for _, pipe in self._workers], _START_S)
        assert all(good for good, _ in started.values()), started

    def close(self) -> None:
        """Ends the processes, whatever they do."""
        for worker, pipe in self._workers:
            worker.kill()
            pipe.close()
        for worker, _ in self._workers:
            worker.join()
        self._workers = []


def _answers(pipes: list[Connection], limit_s: float) -> dict[int, tuple[bool, Any]]:
    """(good, value or traceback) by rank; soon after a first failure the others are no longer waited for."""
    ranks = {pipe: rank for rank, pipe in enumerate(pipes)}
    answers: dict[int, tuple[bool, Any]] = {}
    until = time.monotonic() + limit_s
    while len(answers) < len(pipes) and time.monotonic() < until:
        open_pipes = [pipe for pipe, rank in ranks.items() if rank not in answers]
        for ready in wait(open_pipes, max(0.0, until - time.monotonic())):
            assert isinstance(ready, Connection)
            try:
                answers[ranks[ready]] = ready.recv()
            except (EOFError, OSError):
                answers[ranks[ready]] = (False, "its process ended")
            if not answers[ranks[ready]][0]:
                until = min(until, time.monotonic() + 3.0)
    for rank in range(len(pipes)):
        answers.setdefault(rank, (False, f"no answer within {limit_s:.0f} s, or since another rank failed"))
    return answers


def _serve(rank: int, size: int, store: str, pipe: Connection) -> None:
    """A worker's life: gloo groups of ranks 0 to n - 1 for every n, then one body after the other."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=Path(store).as_uri(), rank=rank, world_size=size, timeout=timedelta(seconds=_START_S)
    )
    groups = {n: dist.new_group(list(range(n))) for n in range(1, size + 1)}
    pipe.send((True, None))
    while True:
        try:
            world, body, arguments = pipe.recv()
        except EOFError:
            return  # the tests have ended
        try:
            with world.environment():
                pipe.send((True, body(groups[world.ranks], *arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
