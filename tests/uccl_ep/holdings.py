"""What this process and its Buffers hold of the system, to see that a Buffer's end gives it all back."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback

from tests.faults import inventory


class Holdings:
    """The process's inventory, and files in /dev/shm that are not another program's."""

    def __init__(self) -> None:
        self.process = inventory.take()
        self.shm = {name for name in os.listdir("/dev/shm") if not inventory.of_another_program(name, {os.getpid()})}

    def assert_gone_back(self) -> None:
        """Nothing more is held than when this was made; threads may take a moment to be gone."""
        deadline = time.monotonic() + 10
        while (more := self._more()) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not more, f"still held: {more}\n{_threads_at_work()}"

    def _more(self) -> dict[str, int]:
        now = Holdings()
        return now.process.since(self.process) | {f"/dev/shm/{name}": 1 for name in now.shm - self.shm}


def _threads_at_work() -> str:
    """Where each of Python's threads is."""
    frames = sys._current_frames()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(f"{names.get(at)}:\n" + "".join(traceback.format_stack(frame)) for at, frame in frames.items())
