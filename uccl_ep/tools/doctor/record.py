"""What a check says, what it becomes in a report, and the guard around each one: a check that fails is a finding.

A path is a way to compute or to move rows. Its verdict follows from its findings alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uccl_ep.tools.doctor.host import Host

PATHS = ("cpu", "host", "tcp", "cuda", "rocm", "verbs", "efa", "libfabric")
OK, SLOW, MISSING = "ok", "slow", "missing"
UNKNOWN, NO_DEVICE, NOT_NEEDED = "unknown", "no device", "not needed"
USABLE = (OK, SLOW)
"""States of a path that can be used."""
UNUSED = (NO_DEVICE, NOT_NEEDED)
"""States of what this machine has no use for."""
_MOST_CHARACTERS = 600  # of a message that a driver or a file may have made arbitrarily long


@dataclass(frozen=True)
class Answer:
    """What one check found.

    Attributes:
        state: OK; SLOW: the path works, only slower, narrower or less surely; MISSING: it cannot be used without;
            UNKNOWN: it could not be found out; NO_DEVICE: there is nothing here that the path is for; NOT_NEEDED: a
            setting, or something else that is here, makes it needless.
        found: what is there. needed: what should be. fix: the command, or the step, that makes it so.
    """

    state: str
    found: str
    needed: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Finding:
    """An answer with its place: what a report shows as one row, and `--json` as one object."""

    path: str
    name: str
    state: str
    found: str
    needed: str
    fix: str


@dataclass(frozen=True)
class Check:
    """One requirement of one path."""

    path: str
    name: str
    ask: Callable[[Host], Answer]


@dataclass(frozen=True)
class Verdict:
    """Whether a path can be used here, in a word and in a line."""

    path: str
    state: str
    words: str


def ok(found: str, needed: str = "") -> Answer:
    """It is there."""
    return Answer(OK, found, needed)


def missing(found: str, needed: str, fix: str) -> Answer:
    """It is not there, and the path cannot do without."""
    return Answer(MISSING, found, needed, fix)


def slow(found: str, needed: str, fix: str) -> Answer:
    """It is not as it should be; the path works, only less well."""
    return Answer(SLOW, found, needed, fix)


def unknown(found: str, needed: str, fix: str) -> Answer:
    """Nobody here can tell."""
    return Answer(UNKNOWN, found, needed, fix)


def no_device(why: str) -> Answer:
    """There is nothing here that it is for."""
    return Answer(NO_DEVICE, why)


def not_needed(why: str) -> Answer:
    """A setting, or what else is here, makes it needless."""
    return Answer(NOT_NEEDED, why)


def examine(check: Check, host: Host) -> Finding:
    """The check's finding, whatever happens inside of it."""
    try:
        answer = check.ask(host)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        answer = unknown(
            f"{where}{error.strerror or error}",
            "a file that this process may read",
            "run doctor where the job runs, as the job's user; ask whoever runs the container for that file",
        )
    except Exception as error:  # anything at all: a report with a hole in it is better than none
        answer = unknown(
            f"the check failed ({type(error).__name__}: {error})",
            "a check that works",
            "report it with the output of `uccl-ep doctor --json`",
        )
    return Finding(check.path, check.name, answer.state, short(answer.found), answer.needed, short(answer.fix))


def short(text: str) -> str:
    """One line of bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= _MOST_CHARACTERS else line[: _MOST_CHARACTERS - 3] + "..."


def judge(path: str, findings: Sequence[Finding]) -> Verdict:
    """The verdict over a path's own findings."""
    mine = [finding for finding in findings if finding.path == path]
    blocking = [f.name for f in mine if f.state == MISSING]
    weaker = [f.name for f in mine if f.state in (SLOW, UNKNOWN)]
    if blocking:
        return Verdict(path, MISSING, f"cannot be used: {', '.join(blocking)}")
    if not mine or all(f.state in UNUSED for f in mine):
        return Verdict(path, mine[0].state if mine else NOT_NEEDED, mine[0].found if mine else "nothing was looked at")
    if weaker:
        state = SLOW if any(f.state == SLOW for f in mine) else OK
        return Verdict(path, state, f"can be used, but look at: {', '.join(weaker)}")
    return Verdict(path, OK, "can be used")
