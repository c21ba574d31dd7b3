"""Finds the ranks of this host and maps what they count, read-only: the job does not notice.

A rank is found by its page: in the processes of a given pid and its children, in a directory that ranks were told of
(UCCL_EP_OBSERVE_DIR), or in all processes of this user, whose memfds have names. A proxy that is a process of its own
has no page; it leads to its rank. A rank that ends while it is looked at
is `gone`; what it had counted by then stays readable.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil

import uccl_ep
from uccl_ep import _native
from uccl_ep.errors import InvalidArgument, UcclEpError
from uccl_ep.observe.page import MOST_BYTES, PAGE_SUFFIX, Location, Page, unpack
from uccl_ep.recorder import durations
from uccl_ep.system.private import read_file

Words = npt.NDArray[np.uint64]

_PAGE_LINK = re.compile(rf"/memfd:uccl-ep-\d+{PAGE_SUFFIX}( \(deleted\))?")
_PAGE_BYTES = 4096


class Gone(UcclEpError):
    """A rank has ended, or its segment is no longer what its page says."""


@dataclass(frozen=True)
class Found:
    """A rank's page, and the pid by which this process reaches it (another one than the page's in another namespace of
    pids)."""

    page: Page
    pid: int


def find(pid: int | None = None, directory: str | os.PathLike[str] | None = None) -> list[Found]:
    """Ranks on this host, by session and rank.

    Args:
        pid: a rank's process, its proxy's, or one that has started ranks (a launcher). None: see below.
        directory: where ranks were told to leave their files. With neither: all processes of this user.

    Raises:
        InvalidArgument: both are given, there is no such process or directory, or it may not be looked into.
    """
    if pid is not None and directory is not None:
        raise InvalidArgument("a pid and a directory exclude each other: give one of them")
    if directory is not None:
        found = _in_directory(Path(directory))
    elif pid is not None:
        found = [f for p in _family_of(pid) for f in _in_process(p, demanded=p == pid)] or _served_by(pid)
    else:
        found = [f for p in _own_processes() for f in _in_process(p)]
    # A forked child has its parent's descriptors: the one that the page names comes first.
    found.sort(key=lambda f: (f.page.session, f.page.rank, f.pid != f.page.pid))
    unique = {(f.page.session, f.page.rank): f for f in reversed(found)}
    return [unique[key] for key in sorted(unique)]


def _family_of(pid: int) -> list[int]:
    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        raise InvalidArgument(f"no process {pid} is on this host: give the pid of a rank or its launcher") from None


def _served_by(pid: int) -> list[Found]:
    """The rank whose proxy this process is (UCCL_EP_PROXY=process): it has started the proxy and has its counters.

    A page has pids as the rank knows them, so the proxy is looked for by its number in every namespace of pids.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
        parent = psutil.Process(pid).ppid()
    except (OSError, psutil.Error):  # it has ended
        return []
    numbers = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [str(pid)])
    served = [f for f in _in_process(parent) if f.page.proxy_pid != f.page.pid]
    return [f for f in served if str(f.page.proxy_pid) in numbers]


def _own_processes() -> Iterator[int]:
    me = os.geteuid()
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                if os.stat(f"/proc/{name}").st_uid == me:
                    yield int(name)
            except OSError:  # it has ended
                continue


def _in_process(pid: int, demanded: bool = False) -> Iterator[Found]:
    """Pages among a process's descriptors. One that cannot be looked into has none, unless it is the one asked for."""
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except FileNotFoundError:
        return
    except PermissionError:
        if not demanded:
            return
        raise InvalidArgument(f"process {pid} may not be looked into: run as its user, or as root") from None
    for number in numbers:
        path = f"/proc/{pid}/fd/{number}"
        try:
            if _PAGE_LINK.fullmatch(os.readlink(path)):
                with open(path, "rb") as file:
                    yield Found(unpack(file.read(MOST_BYTES)), pid)
        except (OSError, InvalidArgument):  # closed meanwhile, being written, or another version's
            continue


def _in_directory(directory: Path) -> list[Found]:
    if not directory.is_dir():
        raise InvalidArgument(f"no directory {directory} is on this host: give the ranks' UCCL_EP_OBSERVE_DIR")
    found = []
    for path in directory.glob("uccl-ep-*.page"):
        try:
            page = unpack(read_file(path, MOST_BYTES, anybody=True))
        except (OSError, InvalidArgument):
            continue
        if _refers_to(page.pid, page.segments["control"]):  # else its rank was killed, or runs on another host
            found.append(Found(page, page.pid))
    return found


def _refers_to(pid: int, where: Location) -> bool:
    try:
        return os.stat(f"/proc/{pid}/fd/{where.fd}").st_ino == where.inode
    except OSError:
        return False


class Attached:
    """One rank, mapped for reading.

    Attributes:
        page: what it said of itself. pid: by which it is reached.
        control, rings, counters: words of those segments. stats: what kernels add up, [num_ranks, PEER_STATS]; None
            where that is in a GPU. data: the words that tell of calls; None where rows are in a GPU. durations: of
            calls, as recorder/durations.py has them; None: the rank keeps none.

    Raises:
        Gone: the rank has ended.
        InvalidArgument: it runs another version of uccl_ep, whose counters may mean something else.
    """

    def __init__(self, found: Found) -> None:
        self.page, self.pid = found.page, found.pid
        page = self.page
        layout = _native.ControlLayout()
        layout.num_ranks, layout.num_channels = page.num_ranks, page.num_channels
        self.layout = layout
        sizes = {
            "control": layout.bytes(),
            "rings": page.num_rings * _native.ring_bytes(page.ring_capacity),
            "counters": _native.counters_bytes(page.proxy_threads, page.num_ranks),
        }
        same = page.library == uccl_ep.__version__
        if not same or any(page.segments[name].num_bytes < size for name, size in sizes.items()):
            raise InvalidArgument(
                f"rank {page.rank} (pid {self.pid}) runs uccl_ep {page.library}, this is {uccl_ep.__version__}: "
                "look at it with the version that it runs"
            )
        self.control, self.rings, self.counters = (self._map(name, sizes[name]) for name in sizes)
        stats_bytes = 8 * _native.PEER_STATS * page.num_ranks
        self.stats = self._map("stats", stats_bytes) if "stats" in page.segments else None
        self.durations = self._map("durations", durations.BYTES) if "durations" in page.segments else None
        self.signals = _native.SignalLayout()
        self.signals.num_ranks, self.signals.num_channels = page.num_ranks, page.num_channels
        flags_bytes = self.signals.flag(len(_native.Phase), 0)
        self.data = self._map("data", flags_bytes) if "data" in page.segments else None

    @property
    def alive(self) -> bool:
        """Whether the rank still has its segments. False once it was destroyed or its process has ended."""
        return _refers_to(self.pid, self.page.segments["control"])

    def _map(self, name: str, num_bytes: int) -> Words:
        where = self.page.segments[name]
        try:
            fd = os.open(f"/proc/{self.pid}/fd/{where.fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise Gone(f"rank {self.page.rank} (pid {self.pid}): {error.strerror}") from error
        try:
            if os.fstat(fd).st_ino != where.inode:
                raise Gone(f"rank {self.page.rank} (pid {self.pid}): descriptor {where.fd} is another file by now")
            mapped = mmap.mmap(fd, num_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(fd)
        return np.frombuffer(mapped, dtype=np.uint64)  # the map lives as long as the array


def attach(found: Sequence[Found]) -> tuple[list[Attached], list[str]]:
    """Maps those that can be: (ranks, why others are left out)."""
    attached, left_out = [], []
    for one in found:
        try:
            attached.append(Attached(one))
        except Gone:
            continue
        except (OSError, ValueError, UcclEpError) as error:
            left_out.append(str(error))
    return attached, left_out
