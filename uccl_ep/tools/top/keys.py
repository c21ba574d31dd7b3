"""Keys that are pressed while a view is shown, without Enter. Without a terminal there are none, and time passes."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Wait = Callable[[float], str]
"""Waits at most so many seconds; returns the key that was pressed, or "" when none was."""


@contextmanager
def keyboard() -> Iterator[Wait]:
    """Reads single keys from standard input; at the end the terminal is as it was. Ctrl-C still interrupts."""
    try:
        fd = sys.stdin.fileno()
        before = termios.tcgetattr(fd)
    except (OSError, ValueError, AttributeError, termios.error):  # no terminal, closed, or none at all
        yield _sleep
        return
    if os.tcgetpgrp(fd) != os.getpgrp():  # in the background: changing the terminal would stop this process
        yield _sleep
        return
    tty.setcbreak(fd)
    try:
        yield lambda seconds: _key(fd, seconds)
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _sleep(seconds: float) -> str:
    time.sleep(seconds)
    return ""


def _key(fd: int, seconds: float) -> str:
    if not select.select([fd], [], [], seconds)[0]:
        return ""
    data = os.read(fd, 1)
    if not data:  # the terminal has gone; it would be ready for ever
        return _sleep(seconds)
    return data.decode("ascii", errors="replace")
