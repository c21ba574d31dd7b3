"""What the system refuses: which call, and which limit of the process stands behind it."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

_NO_THREAD = "can't start new thread"  # Python's words, which have no number


def in_words(failure: BaseException) -> str:
    """A failure as a rank tells it to the others: its type, its text, and the limit that it has met, if any."""
    said = f"{type(failure).__name__}: {failure}"
    met = limit_behind(str(failure))
    return said if met in said else f"{said}. {met}"


def limit_behind(text: str) -> str:
    """The limit that a refusal of the system comes from, and what to do; empty: none of this process's."""
    if os.strerror(errno.EMFILE) in text:
        what = f"This process may have {_limit(resource.RLIMIT_NOFILE)} open files and sockets (ulimit -n)"
        return f"{what}: allow it more than 100 + 8 x ranks x proxy threads"
    if os.strerror(errno.ENOMEM) in text and address_space() is not None:
        what = f"This process may have {_limit(resource.RLIMIT_AS)} bytes of address space (ulimit -v, RLIMIT_AS)"
        return f"{what}, of which it had taken {_taken()}: set it to unlimited, or to what is wanted on top of that"
    if os.strerror(errno.EAGAIN) in text or _NO_THREAD in text:
        what = f"This user may have {_limit(resource.RLIMIT_NPROC)} threads (ulimit -u)"
        return f"{what}, and the job as many as its cgroup's pids.max says"
    return ""


def address_space() -> int | None:
    """Bytes of address space that this process may have (`ulimit -v`); None: any number."""
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def make_room(wanted: int) -> None:
    """Raises this process's soft limit of open files, where fewer than `wanted` are left, as far as the hard one goes.

    The usual soft limit is 1,024, and a Buffer takes a dozen descriptors and some for each remote rank: a model with
    one a layer meets it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        needed = len(os.listdir("/proc/self/fd")) + wanted
    except OSError:  # not even one is left to look with
        needed = soft + wanted
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if most > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@contextmanager
def naming(what: str) -> Iterator[None]:
    """What the system refuses inside is said with what it was for: Python's own text is a number and a few words."""
    try:
        yield
    except OSError as error:
        said = error.strerror or str(error)
        met = limit_behind(said)
        at = f" ({error.filename})" if error.filename else ""
        raise OSError(error.errno, f"{what}: {said}{at}{f'. {met}' if met and met not in said else ''}") from error


def _limit(which: int) -> str:
    soft, hard = ("unlimited" if n == resource.RLIM_INFINITY else str(n) for n in resource.getrlimit(which))
    return f"{soft} (hard limit {hard})"


def _taken() -> str:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return str(int(file.read().split()[0]) * resource.getpagesize())
    except OSError:
        return "an unknown part"
