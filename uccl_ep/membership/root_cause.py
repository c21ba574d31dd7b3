"""Whom a time-out is about. A wait names the rank it was for; that rank may itself have been waiting, for another one.

Ranks of one host can look at each other: at the fault records in their control segments, and at whether the kernel runs
their processes at all. Ranks of other hosts say whom they have waited for (roll_call.py); where one that waits has not
said so in time, it is named.
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
        accusations: for each rank whose wait has expired and that has been heard of: whom that was for.
        stopped: ranks of this host that are not running, or whose proxy is not.
        heard_ns: for each rank of another host: when something last came from it.
        silent: ranks that have said nothing since they were told of the accusations, not even that they are alive.
    """

    accusations: Mapping[int, int] = field(default_factory=dict)
    stopped: Collection[int] = ()
    heard_ns: Mapping[int, int] = field(default_factory=dict)
    silent: Collection[int] = ()


def root_of(rank: int, accused: int, known: Knowledge) -> int:
    """The rank that the others wait for in the end.

    Args:
        rank: who asks.
        accused: whom its own wait was for; itself, where one half of a kernel waits for the other.
        known: what it sees.

    Returns:
        A stopped rank if there is one; else the end of the chain from `accused` over the accusations. In a circle, the
        one whom most accuse and who accuses nobody, else a silent one: who waits for several names only the first of
        them. Without such a rank, `accused`. Where that is `rank` itself, its other half waits for another host: whom
        most accuse, or the rank there that has been silent for longest.
    """
    root = _end_of_chain(accused, known)
    if root == rank and rank not in known.stopped:
        others = {by: whom for by, whom in known.accusations.items() if whom != rank}
        silent = min(known.heard_ns, key=lambda other: (known.heard_ns[other], other), default=rank)
        return _most_accused(others, silent)
    return root


def _most_accused(accusations: Mapping[int, int], default: int) -> int:
    """Of those who accuse nobody."""
    silent = [whom for whom in accusations.values() if whom not in accusations]
    return max(sorted(set(silent)), key=silent.count, default=default)


def _end_of_chain(accused: int, known: Knowledge) -> int:
    if known.stopped:
        return accused if accused in known.stopped else min(known.stopped)
    seen = set()
    rank = accused
    while rank in known.accusations:
        if rank in seen:
            last = min(known.silent, key=lambda other: (known.heard_ns.get(other, _NEVER), other), default=accused)
            return _most_accused(known.accusations, last)
        seen.add(rank)
        rank = known.accusations[rank]
    return rank
