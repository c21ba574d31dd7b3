"""A short traceback for an error of ours that ends a program: the caller's lines and what happened, not our own frames.

Under torchrun every rank prints one, so forty lines of a library's inside come as often as there are ranks.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from uccl_ep.errors import UcclEpError

_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
LEFT_OUT = "(lines inside of uccl_ep are left out; UCCL_EP_EXPLAIN=1 shows them)"


def shorten(explain: Callable[[], bool]) -> None:
    """From now on errors of ours that nobody catches are printed so. A hook that the program has set is left alone.

    Args:
        explain: whether they are printed whole; asked when there is one.
    """

    def print_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, UcclEpError) and not _said_yes(explain):
            _print_short(kind, error, trace)
        else:
            sys.__excepthook__(kind, error, trace)

    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = print_uncaught


def _print_short(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    told = traceback.TracebackException(kind, error, trace, compact=True)
    whole = len(told.stack)
    theirs = [frame for frame in told.stack if not frame.filename.startswith(_PACKAGE)]
    told.stack = traceback.StackSummary.from_list(theirs)
    print("".join(told.format(chain=False)).rstrip(), file=sys.stderr)
    if len(told.stack) < whole:
        print(LEFT_OUT, file=sys.stderr)


def _said_yes(explain: Callable[[], bool]) -> bool:
    try:
        return explain()
    except UcclEpError:  # the settings themselves may be what the program ended by
        return False
