"""Whom a time-out is about. A wait names the rank it was for; that rank may itself have been waiting, for another one.

Ranks of one host can look at each other: at the fault records in their control segments, and at whether the kernel runs
their processes at all. Ranks of other hosts say whom they have waited for (roll_call.py); where one that waits has not
said so in time, it is named.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

_STOPPED = (b"T", b"t")  # by a signal, or by a debugger
_ENDED = (b"", b"Z", b"X")  # nobody may have asked yet how it ended
_NEVER = 1 << 63  # of this host, whose ranks are heard otherwise


def _state(pid: int) -> bytes:
    """Of a process of this host (proc(5), field 3 of stat); empty: there is none. "?": it cannot be told."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):  # it may be hidden (hidepid), or there is no descriptor left to look
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return b""
        except OSError:
            pass
        return b"?"


def is_stopped(pid: int) -> bool:
    """Whether a process of this host exists and is stopped. Of those that belong to others the process watch knows."""
    return _state(pid) in _STOPPED


def has_ended(pid: int) -> bool:
    """Whether no process of this host has that number any more."""
    return _state(pid) in _ENDED


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
