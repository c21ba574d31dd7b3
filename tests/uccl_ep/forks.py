"""A child of os.fork() that does something and says how it went; one that hangs is ended and fails the test."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import time
import traceback
from collections.abc import Callable
from typing import Any

LIMIT_S = 30.0


def in_child(body: Callable[[], Any]) -> Any:
    """What `body` returns in a child, which then ends without any cleanup."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = pickle.dumps((True, body()))
        except BaseException:
            said = pickle.dumps((False, traceback.format_exc()))
        with contextlib.suppress(BaseException):
            os.write(writer, said)
        os._exit(0)
    os.close(writer)
    try:
        assert select.select([reader], [], [], LIMIT_S)[0], "the child hangs"
        good, value = pickle.loads(os.read(reader, 1 << 16))
    finally:
        os.close(reader)
        end(child)
    assert good, f"in the child: {value}"
    return value


def end(child: int) -> int:
    """Waits for a child's end; its status, or that of being killed for taking too long."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -int(signal.SIGKILL)
