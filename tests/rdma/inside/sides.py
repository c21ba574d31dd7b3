"""Ranks told what to do by lines: the native `rdma_side`, or the pyverbs peer, which obeys the same commands."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

Answer = Any  # what the JSON line holds
CABLE = ("rxe0", "rxe1")  # guest/devices.sh
# 4.096 us x 2^18, a second until a packet is sent again: where the machine is busy, the default of 67 ms ends before a
# processor that stood still has answered, and what was not lost is sent again.
PATIENT = 18


class SideFailed(Exception):
    """A side refused a command, ended, or did not answer in time."""


class Side:
    """One rank's process. A context manager."""

    def __init__(self, name: str, command: Sequence[str], environment: dict[str, str] | None = None) -> None:
        self.name = name
        self.process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
        )
        self._pending = b""

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self.process.wait(10.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def tell(self, *words: object) -> None:
        """Sends a command; `answer` reads what comes back."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write((" ".join(map(str, words)) + "\n").encode())
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise SideFailed(f"{self.name} has ended with {self.process.poll()}") from error

    def answer(self, limit_s: float = 60.0) -> Answer:
        """The next answer.

        Raises:
            SideFailed: the side reports an error, has ended, or says nothing within `limit_s` seconds.
        """
        assert self.process.stdout is not None
        until = time.monotonic() + limit_s
        while b"\n" not in self._pending:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise SideFailed(f"{self.name} has not answered within {limit_s:.0f} s")
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            if not more:
                raise SideFailed(f"{self.name} ended with {self.process.wait(10.0)} instead of an answer")
            self._pending += more
        line, _, self._pending = self._pending.partition(b"\n")
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            raise SideFailed(f"{self.name}: {answer['error']}")
        return answer

    def ask(self, *words: object, limit_s: float = 60.0) -> Answer:
        """Sends a command and returns its answer."""
        self.tell(*words)
        return self.answer(limit_s)

    def kill(self) -> float:
        """Ends the process with SIGKILL; returns when (time.monotonic)."""
        self.process.send_signal(signal.SIGKILL)
        now = time.monotonic()
        self.process.wait()
        return now


def native(programs: Path, rank: int, **options: object) -> Side:
    """A side of our own transport; `options` are rdma_side's arguments."""
    options.setdefault("device", CABLE[rank % 2])
    arguments = [f"{name}={value}" for name, value in options.items()]
    return Side(f"rank {rank}", [str(programs / "rdma_side"), f"rank={rank}", *arguments])


def pyverbs(rank: int, **options: object) -> Side:
    """A side that speaks verbs through pyverbs, with the first Python here that has it."""
    options.setdefault("device", CABLE[rank % 2])
    arguments = [f"{name}={value}" for name, value in options.items()]
    command = [python_with_pyverbs(), str(Path(__file__).parent / "peer.py"), f"rank={rank}", *arguments]
    return Side(f"rank {rank} (pyverbs)", command)


def python_with_pyverbs() -> str:
    """An interpreter that can import pyverbs: this one, or the distribution's own, for which its package is built."""
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import pyverbs.device"], capture_output=True).returncode == 0:
            return python
    raise SideFailed("no Python here can import pyverbs (package python3-pyverbs)")


@contextmanager
def connected(*sides: Side) -> Iterator[tuple[Side, ...]]:
    """The sides, connected with each other; their processes end with the context."""
    with ExitStack() as stack:
        for side in sides:
            stack.enter_context(side)
        connect(sides)
        yield sides


def connect(sides: Sequence[Side]) -> None:
    """Each with all others, in the order of their ranks.

    Raises:
        SideFailed: what each that could not has said.
    """
    for side in sides:
        side.tell("address")
    addresses = [side.answer()["address"] for side in sides]
    for side in sides:
        side.tell("connect", *("-" if other is side else a for other, a in zip(sides, addresses, strict=True)))
    failed = []
    for side in sides:  # all of them: the first to complain is often not the one at fault
        try:
            side.answer()
        except SideFailed as error:
            failed.append(str(error))
    if failed:
        raise SideFailed("; ".join(failed))
