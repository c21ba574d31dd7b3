"""The root cause of a time-out: the rank that all the others wait for in the end.

A wait names the rank it was for, but that rank may itself have waited, for a third one. Ranks of one machine look at
each other: at the fault records in their control segments, and at whether the operating system runs their processes.
Ranks of other machines report whom they have waited for (wait_reports.py); one that does not report in time is named.
"""

from __future__ import annotations

import os
import select
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

_STOPPED = (b"T", b"t")  # by a signal, or by a debugger
_ENDED = (b"Z", b"X")  # nobody may have asked yet how it ended
_START = 19  # field 22 of stat
_NEVER = 1 << 63  # of this host, whose ranks are heard otherwise


def _stat(pid: int) -> list[bytes]:
    """Of a process of this host, from field 3 of stat on (proc(5)); empty: it has gone, or may not be looked at."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def is_stopped(pid: int) -> bool:
    """Whether a process of this host exists and is stopped. Of those that belong to others the process watch knows."""
    return _stat(pid)[:1] in [[state] for state in _STOPPED]


def start_of(pid: int) -> int:
    """When a process of this host began, in ticks of its clock; 0: it has gone, or may not be looked at."""
    fields = _stat(pid)
    return int(fields[_START]) if len(fields) > _START else 0


def has_ended(pid: int, start: int = 0) -> bool:
    """Whether a process of this host has ended. False of one that may not be looked at (hidepid) and is there.

    Args:
        start: its start_of() while it lived; another one then has its number. 0: not known.
    """
    fields = _stat(pid)
    if not fields:
        return not _is_there(pid)
    return fields[0] in _ENDED or (start > 0 and int(fields[_START]) != start)


def _is_there(pid: int) -> bool:
    """The same without /proc."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except OSError:  # an old kernel or container profile, or no descriptor left
        try:
            os.kill(pid, 0)
        except OSError as error:
            return not isinstance(error, ProcessLookupError)
        return True
    try:
        ends = select.poll()
        ends.register(process, select.POLLIN)
        return not ends.poll(0)
    finally:
        os.close(process)


@dataclass(frozen=True)
class Knowledge:
    """What a rank can see of the others.

    Attributes:
        wait_reports: for each rank whose wait has expired and was reported: the rank that it waited for.
        stopped: ranks of this machine whose process or proxy does not run.
        heard_ns: for each rank of another machine: when its last message or write arrived.
        silent: ranks that have not answered any wait report, not even by saying that they are alive.
    """

    wait_reports: Mapping[int, int] = field(default_factory=dict)
    stopped: Collection[int] = ()
    heard_ns: Mapping[int, int] = field(default_factory=dict)
    silent: Collection[int] = ()


def root_of(rank: int, waited_for: int, known: Knowledge) -> int:
    """The rank that the others wait for in the end.

    Args:
        rank: the rank that asks.
        waited_for: the rank that its own wait was for; itself, where one half of a kernel waits for the other.
        known: what that rank sees of the others.

    Returns:
        A stopped rank, if there is one. Otherwise the end of the chain that starts at `waited_for` and follows the wait
        reports. If the chain is a circle: the rank that most reports name and that waits for nobody; without one, a
        silent rank, because a rank that waits for several reports only the first of them; without one, `waited_for`.
        If the result would be `rank` itself, its sending half waits for its receiving half, which waits for another
        machine: then the rank that most reports name, or the one of another machine that has been silent for longest.
    """
    root = _end_of_chain(waited_for, known)
    if root == rank and rank not in known.stopped:
        others = {by: whom for by, whom in known.wait_reports.items() if whom != rank}
        silent = min(known.heard_ns, key=lambda other: (known.heard_ns[other], other), default=rank)
        return _most_waited_for(others, silent)
    return root


def _most_waited_for(wait_reports: Mapping[int, int], default: int) -> int:
    """The rank that most reports name, of those that report no wait of their own."""
    silent = [whom for whom in wait_reports.values() if whom not in wait_reports]
    return max(sorted(set(silent)), key=silent.count, default=default)


def _end_of_chain(waited_for: int, known: Knowledge) -> int:
    if known.stopped:
        return waited_for if waited_for in known.stopped else min(known.stopped)
    seen = set()
    rank = waited_for
    while rank in known.wait_reports:
        if rank in seen:
            last = min(known.silent, key=lambda other: (known.heard_ns.get(other, _NEVER), other), default=waited_for)
            return _most_waited_for(known.wait_reports, last)
        seen.add(rank)
        rank = known.wait_reports[rank]
    return rank
