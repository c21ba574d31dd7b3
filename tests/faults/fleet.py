"""Rank processes that may be killed, stopped, or leave: started anew for each test, watched by the test's process.

Ranks talk to the test over a pipe each. The test's process also does their all_gather_object, so that no other
library's view of a death is mixed in.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import psutil

from tests.end_to_end.world import World
from tests.faults import network
from tests.faults.inventory import of_another_program
from uccl_ep.recorder.record import SUFFIX, read
from uccl_ep.session import session
from uccl_ep.settings import settings

Body = Callable[..., Any]  # body(member, *arguments), on every rank
SHARED = "/dev/shm"
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
        """As a group's: raises RuntimeError when a rank has ended before it said its part, as gloo does."""
        self._pipe.send(("gather", value))
        kind, values = self._pipe.recv()
        if kind == "parted":
            raise RuntimeError(f"all_gather_object: connection closed by peer {values}")
        assert kind == "gathered"
        return list(values)

    def tell(self, what: str, value: Any = None) -> None:
        """Queues a report for the test; it survives this process."""
        self._pipe.send((what, value))

    def ask(self) -> Any:
        """Waits for what the test sends."""
        return self._pipe.recv()[1]


@dataclass(frozen=True)
class Place:
    """Where a rank runs: a host of its own making ("": this machine), and the network namespace that stands for it."""

    host: str
    namespace: str = ""
    address: str = "127.0.0.1"

    def enter(self) -> None:
        """Makes this process run there. Ranks of different places see neither each other's memory nor processes."""
        os.environ["UCCL_EP_INTERFACE"] = self.address  # the fleet's World puts the environment back
        settings.cache_clear()
        if self.namespace:
            network.enter(self.namespace)
        if self.host:
            session.host_identity = lambda: self.host  # type: ignore[attr-defined]


@dataclass
class Report:
    """Something a rank said, and when it was read (time.monotonic, the same clock in every process)."""

    rank: int
    what: str
    value: Any


class Fleet:
    """The ranks of one test. A context manager: at its end nothing may be left of them."""

    def __init__(
        self,
        world: World,
        body: Body,
        *arguments: Any,
        worlds: Sequence[World] | None = None,
        places: Sequence[Place] | None = None,
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "uccl_ep.buffer", "uccl_ep.reference.calls", "torch.distributed"])
        self._shared_before = set(os.listdir(SHARED))
        self.folder = tempfile.TemporaryDirectory(prefix="fleet-")  # of the ranks' temporary files
        self._gathered: dict[int, Any] = {}
        self._pipes: list[Connection] = []
        self.processes: list[Any] = []
        self.reports: list[Report] = []
        self._family: dict[int, psutil.Process] = {}
        self._sockets: set[str] = set()
        for rank in range(world.ranks):
            here, there = context.Pipe()
            own = worlds[rank] if worlds else world
            place = places[rank] if places else None
            process = context.Process(target=_member, args=(rank, world.ranks, own, place, there, body, arguments))
            process.start()
            here.send(self.folder.name)
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
                self._part()
                continue
            if what != "gather":
                self.reports.append(Report(rank, what, value))
                continue
            self._gathered[rank] = value
            self._part()
            if len(self._gathered) == len(self._pipes):
                values = [self._gathered[r] for r in range(len(self._pipes))]
                self._gathered = {}
                for other in self._pipes:
                    other.send(("gathered", values))
        return bool(open_pipes)

    def wait_for_gather(self, ranks: Sequence[int], limit_s: float = LIMIT_S) -> None:
        """Returns when these ranks wait in an exchange of the group, for one who does not come."""
        until = time.monotonic() + limit_s
        while not set(ranks) <= set(self._gathered):
            assert time.monotonic() < until, f"only {sorted(self._gathered)} are in an exchange; {self.reports}"
            assert self._read(until), f"all ranks ended; {self.reports}"

    def _part(self) -> None:
        """Ends an exchange that a rank can no longer take part in."""
        ended = [rank for rank, pipe in enumerate(self._pipes) if pipe.closed]
        if ended and self._gathered:
            self.part(ended[0])

    def part(self, rank: int) -> None:
        """Ends the exchange that is under way, for those who wait in it: what a group does whose rank is gone."""
        for other in self._gathered:
            if not self._pipes[other].closed:
                self._pipes[other].send(("parted", rank))
        self._gathered = {}

    def answer(self, rank: int, value: Any = None) -> None:
        """What the rank's `ask` returns."""
        self._pipes[rank].send(("answer", value))

    # ---- doing harm --------------------------------------------------------------------------------------------------

    def remember(self) -> None:
        """Notes processes and sockets of the ranks, to look for them at the end."""
        for process in self.processes:
            try:
                seen = psutil.Process(process.pid)
                for member in [seen, *seen.children(recursive=True)]:
                    self._family[member.pid] = member
                    self._sockets |= {_inode(target) for target in _open_files(member.pid) if "socket:[" in target}
            except psutil.NoSuchProcess:
                continue  # it has been killed

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
        """Of this fleet: other programs' files and sockets come and go."""
        assert self._family, "remember() was not called"
        _, alive = psutil.wait_procs(list(self._family.values()), timeout=10.0)
        assert not alive, f"processes left behind: {alive}"
        # Semaphores of Python's multiprocessing are other programs': neither ranks nor the fleet use any.
        own = {member.pid for member in self._family.values()}
        shared = {n for n in os.listdir(SHARED) if not n.startswith("sem.mp-") and not of_another_program(n, own)}
        shared -= {*self._shared_before, f"uccl-ep-{os.getuid()}"}  # journals of killed ranks stay, on purpose
        assert not shared or not (orphans := _orphans(shared)), f"entries of nobody left in {SHARED}: {orphans}"
        with open("/proc/net/tcp", encoding="ascii") as table:
            rows = [line.split() for line in list(table)[1:]]
        used = [row[1] for row in rows if row[3] in ("01", "0A") and row[9] in self._sockets]  # established, listening
        assert not used, f"sockets left open: {used}"
        # Flight records of faults stay, on purpose: whole ones, of ranks of this fleet, and nothing beside them.
        records = Path(self.folder.name) / f"uccl-ep-{os.getuid()}"
        files = set(os.listdir(self.folder.name)) - {records.name}
        files |= {path.name for path in records.glob("*") if not path.name.endswith(SUFFIX)}
        files |= {path.name for path in records.glob(f"*{SUFFIX}") if not 0 <= read(path).rank < len(self.processes)}
        assert not files, f"temporary files left: {files}"
        self.folder.cleanup()


def _open_files(pid: int | str) -> list[str]:
    """What a process's descriptors are, as proc(5) has it."""
    found = []
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            found.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    except OSError:
        pass  # it, or the descriptor, has just gone
    return found


def _inode(target: str) -> str:
    return target.partition("[")[2].rstrip("]")


def _orphans(names: set[str]) -> set[str]:
    """Those that still exist a moment later, and that no process has open or mapped."""
    time.sleep(1.0)
    held = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        held |= {os.path.basename(target) for target in _open_files(pid) if target.startswith(SHARED)}
        try:
            with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
                held |= {os.path.basename(line.rstrip()) for line in maps if SHARED in line}
        except OSError:
            continue
    return {name for name in names - held if os.path.exists(os.path.join(SHARED, name))}


def _member(
    rank: int, size: int, world: World, place: Place | None, pipe: Connection, body: Body, arguments: tuple[Any, ...]
) -> None:
    import torch

    torch.set_num_threads(1)
    os.environ["TMPDIR"] = tempfile.tempdir = pipe.recv()
    try:
        with world.environment():
            if place is not None:
                place.enter()
            body(Member(rank, size, pipe), *arguments)
    except BaseException:
        pipe.send(("error", traceback.format_exc()))
