"""Rank processes that may be killed, stopped, or leave: started anew for each test, watched by the test's process.

Ranks talk to the test over a pipe each. The test's process also does their all_gather_object, so that no other
library's view of a death is mixed in.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import psutil

from tests.end_to_end.world import World

Body = Callable[..., Any]  # body(member, *arguments), on every rank
LIMIT_S = 50.0


class Member:
    """What a rank's body gets: a group for Buffer, and a way to tell the test something."""

    def __init__(self, rank: int, size: int, pipe: Connection) -> None:
        self._rank, self._size, self._pipe = rank, size, pipe

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def all_gather_object(self, value: Any) -> list[Any]:
        self._pipe.send(("gather", value))
        kind, values = self._pipe.recv()
        assert kind == "gathered"
        return list(values)

    def tell(self, what: str, value: Any = None) -> None:
        """Queues a report for the test; it survives this process."""
        self._pipe.send((what, value))

    def ask(self) -> Any:
        """Waits for what the test sends."""
        return self._pipe.recv()[1]


@dataclass
class Report:
    """Something a rank said, and when it was read (time.monotonic, the same clock in every process)."""

    rank: int
    what: str
    value: Any


class Fleet:
    """The ranks of one test. A context manager: at its end nothing may be left of them."""

    def __init__(self, world: World, body: Body, *arguments: Any, worlds: Sequence[World] | None = None) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "uccl_ep.buffer", "uccl_ep.reference", "torch.distributed"])
        self._shared_before = set(os.listdir("/dev/shm"))
        self._gathered: dict[int, Any] = {}
        self._pipes: list[Connection] = []
        self.processes: list[Any] = []
        self.reports: list[Report] = []
        self._family: dict[int, psutil.Process] = {}
        self._ports: set[int] = set()
        for rank in range(world.ranks):
            here, there = context.Pipe()
            own = worlds[rank] if worlds else world
            process = context.Process(target=_member, args=(rank, world.ranks, own, there, body, arguments))
            process.start()
            there.close()
            self._pipes.append(here)
            self.processes.append(process)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        for process in self.processes:
            if kind is not None and process.is_alive():
                process.kill()
        for rank, process in enumerate(self.processes):
            process.join(LIMIT_S)
            if process.is_alive():
                process.kill()
                process.join()
                assert kind is not None, f"rank {rank} did not end by itself"
        for pipe in self._pipes:
            pipe.close()
        if kind is None:
            self._assert_nothing_is_left()

    # ---- talking -----------------------------------------------------------------------------------------------------

    def wait_for(self, what: str, ranks: Sequence[int], limit_s: float = LIMIT_S) -> dict[int, Any]:
        """The next report of that name from each of these ranks.

        Raises:
            AssertionError: a rank reported an error, ended without the report, or did not come in time.
        """
        found: dict[int, Any] = {}
        until = time.monotonic() + limit_s
        while True:
            for report in list(self.reports):
                if report.what == "error":
                    raise AssertionError(f"rank {report.rank}: {report.value}")
                if report.what == what and report.rank in ranks and report.rank not in found:
                    found[report.rank] = report.value
                    self.reports.remove(report)
            missing = [rank for rank in ranks if rank not in found]
            if not missing:
                return found
            assert time.monotonic() < until, f"no {what!r} from ranks {missing} within {limit_s} s; {self.reports}"
            assert self._read(until), f"ranks {missing} ended without {what!r}; {self.reports}"

    def _read(self, until: float) -> bool:
        """Reads what has come; False when every rank's pipe is closed."""
        open_pipes = [pipe for pipe in self._pipes if not pipe.closed]
        for pipe in wait(open_pipes, max(0.0, until - time.monotonic())):
            assert isinstance(pipe, Connection)
            rank = self._pipes.index(pipe)
            try:
                what, value = pipe.recv()
            except (EOFError, OSError):
                pipe.close()
                continue
            if what != "gather":
                self.reports.append(Report(rank, what, value))
                continue
            self._gathered[rank] = value
            if len(self._gathered) == len(self._pipes):
                values = [self._gathered[r] for r in range(len(self._pipes))]
                self._gathered = {}
                for other in self._pipes:
                    other.send(("gathered", values))
        return bool(open_pipes)

    def answer(self, rank: int, value: Any = None) -> None:
        """What the rank's `ask` returns."""
        self._pipes[rank].send(("answer", value))

    # ---- doing harm --------------------------------------------------------------------------------------------------

    def remember(self) -> None:
        """Notes processes and listening sockets of the ranks, to look for them at the end."""
        for process in self.processes:
            seen = psutil.Process(process.pid)
            for member in [seen, *seen.children(recursive=True)]:
                self._family[member.pid] = member
                listening = [c for c in member.net_connections("inet") if c.status == psutil.CONN_LISTEN]
                self._ports |= {c.laddr.port for c in listening}

    def signal(self, rank: int, number: signal.Signals) -> float:
        """Sends a signal to a rank; returns when (time.monotonic)."""
        now = time.monotonic()
        os.kill(self.processes[rank].pid, number)
        return now

    def children(self, rank: int) -> list[psutil.Process]:
        """Processes that the rank has started: its proxy."""
        return psutil.Process(self.processes[rank].pid).children(recursive=True)

    def join(self, rank: int) -> int:
        """Waits for the end of a rank's process; its exit code."""
        self.processes[rank].join(LIMIT_S)
        code = self.processes[rank].exitcode
        assert code is not None, f"rank {rank} does not end"
        return int(code)

    def _assert_nothing_is_left(self) -> None:
        assert self._family, "remember() was not called"
        _, alive = psutil.wait_procs(list(self._family.values()), timeout=10.0)
        assert not alive, f"processes left behind: {alive}"
        assert set(os.listdir("/dev/shm")) <= self._shared_before, "entries left in /dev/shm"
        with open("/proc/net/tcp", encoding="ascii") as table:
            listening = {int(line.split()[1].split(":")[1], 16) for line in list(table)[1:] if line.split()[3] == "0A"}
        assert not listening & self._ports, f"sockets still listening: {listening & self._ports}"


def _member(rank: int, size: int, world: World, pipe: Connection, body: Body, arguments: tuple[Any, ...]) -> None:
    import torch

    torch.set_num_threads(1)
    try:
        with world.environment():
            body(Member(rank, size, pipe), *arguments)
    except BaseException:
        pipe.send(("error", traceback.format_exc()))
