"""A short traceback for an error of ours that ends a program: the caller's lines and what happened, not our own frames.

Under torchrun every rank prints one, so forty lines of a library's inside come as often as there are ranks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from uccl_ep.errors import UcclEpError, attach

_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
_OURS = "_uccl_ep_shortens"
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
        if isinstance(error, UcclEpError) and not _said_yes(explain):
            error.__suppress_context__, error.__cause__ = True, None
            trace = error.__traceback__ = _of_others(trace)
            attach(error, LEFT_OUT)
        before(kind, error, trace)

    setattr(print_uncaught, _OURS, True)
    sys.excepthook = print_uncaught


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
