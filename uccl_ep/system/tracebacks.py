"""An error that ends a program: what is printed of it, and what the other ranks are told.

Of an error of ours only the caller's lines are printed and what happened, not our own frames: under torchrun every rank
prints one, so forty lines of a library's inside come as often as there are ranks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from uccl_ep.errors import PeerLost, PeerTimeout, TransportError, UcclEpError, attach

_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
_OURS = "_uccl_ep_shortens"
_MOST_WORDS = 300  # characters
_uncaught: BaseException | None = None
LEFT_OUT = "(lines inside of uccl_ep are left out; UCCL_EP_EXPLAIN=1 shows them)"


def shorten(explain: Callable[[], bool]) -> None:
    """From now on errors of ours that nobody catches are printed so, by the hook that there is: Python's, or torch's,
    which puts the rank in front.

    Args:
        explain: whether they are printed whole; asked when there is one.
    """
    before = sys.excepthook
    if getattr(before, _OURS, False):
        return

    def print_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        global _uncaught
        _uncaught = error
        if isinstance(error, UcclEpError) and not _said_yes(explain):
            error.__suppress_context__, error.__cause__ = True, None
            trace = error.__traceback__ = _of_others(trace)
            attach(error, LEFT_OUT)
        before(kind, error, trace)

    setattr(print_uncaught, _OURS, True)
    sys.excepthook = print_uncaught


def ends_by_an_error() -> bool:
    """Whether nobody has caught an error, so that the program ends by it."""
    return _uncaught is not None


def last_words() -> str:
    """The error by which this rank leaves, on one line: one that is under way, or that nobody has caught. Empty where
    there is none, and where the error only says that another rank is gone."""
    error = sys.exc_info()[1] or _uncaught
    if not isinstance(error, (Exception, KeyboardInterrupt)) or isinstance(
        error, (PeerLost, PeerTimeout, TransportError)
    ):
        return ""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said}"[:_MOST_WORDS] if said else type(error).__name__


def _of_others(trace: TracebackType | None) -> TracebackType | None:
    """The same without frames of this package."""
    if trace is None:
        return None
    rest = _of_others(trace.tb_next)
    if trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        return rest
    return TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def _said_yes(explain: Callable[[], bool]) -> bool:
    try:
        return explain()
    except UcclEpError:  # the settings themselves may be what the program ended by
        return False
