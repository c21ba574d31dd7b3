"""The end of a process whose program has destroyed nothing: its Buffers end while their threads still run."""

from __future__ import annotations

import atexit
import sys
import warnings
import weakref
from typing import Any

from uccl_ep.system import tracebacks

_forgotten: weakref.WeakSet[Any] = weakref.WeakSet()


def end_with_process(buffer: object) -> None:
    """Calls a Buffer's `__del__` when the process ends, if nobody has destroyed it by then: before Python stops the
    threads that have to help with its goodbye. Python itself would call it only afterwards."""
    _forgotten.add(buffer)


def warn_forgotten(kind: str) -> None:
    """Warns that a Buffer's owner was to destroy it and has not; but not where the program ends by an error, which kept
    the owner from it and is what should be read.

    Args:
        kind: the class's name.
    """
    if not tracebacks.ends_by_an_error():
        warnings.warn(f"uccl_ep.{kind} was made with explicitly_destroy=True but never destroyed", stacklevel=2)


def _end_all() -> None:
    for buffer in list(_forgotten):
        try:
            buffer.__del__()
        except Exception:  # of a call that a daemon thread is still in, or of a GPU: the others have their turn
            sys.excepthook(*sys.exc_info())


atexit.register(_end_all)
