"""What a running process prints, as it comes: wait for a line, with a deadline."""

from __future__ import annotations

import re
import subprocess
import threading
import time


class Lines:
    """Reads a process's output on a thread of its own, which ends with the process.

    Args:
        process: made with stdout=PIPE and text=True; nobody else reads it.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: list[str] = []
        self._ended = False
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self._lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def all(self) -> list[str]:
        """What has come until now."""
        with self._news:
            return list(self._lines)

    def wait_for(self, pattern: str, limit_s: float) -> re.Match[str]:
        """The first line that has this pattern.

        Raises:
            TimeoutError: it did not come in time, or the process ended without; with what it printed.
        """
        until = time.monotonic() + limit_s
        looked = 0
        with self._news:
            while True:
                for line in self._lines[looked:]:
                    found = re.search(pattern, line)
                    if found:
                        return found
                looked = len(self._lines)
                left = until - time.monotonic()
                if self._ended or left <= 0:
                    why = "the process ended" if self._ended else f"not within {limit_s:.0f} s"
                    raise TimeoutError(f"no line with {pattern!r}: {why}\n" + "\n".join(self._lines[-40:]))
                self._news.wait(left)

    def finish(self, limit_s: float) -> int:
        """Waits for the process's end; its exit status.

        Raises:
            TimeoutError: it runs on.
        """
        try:
            status = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the process has not ended within {limit_s:.0f} s\n" + "\n".join(self.all())) from None
        self._reader.join(5.0)
        return status
