"""Ranks of this host as processes: how they are started and ended, and signals that end the whole run."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

import uccl_ep

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Stopped(Exception):
    """The user (or the system) asked the run to end; `signal_number` says how."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number


@contextmanager
def signals_stop() -> Iterator[None]:
    """Signals become Stopped while the ranks run, so that none is left behind."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def start(
    command: Sequence[str], variables: Mapping[str, str], log: Path, quiet: bool = False
) -> subprocess.Popen[bytes]:
    """Starts one process: this package, one thread, `variables`, standard error (`quiet`: output too) into `log`.

    It is a session of its own: Ctrl-C reaches only this process, which ends the ranks.
    """
    package = str(Path(uccl_ep.__file__).parent.parent)  # the same package as here, wherever we are called from
    path = os.pathsep.join(p for p in (package, os.environ.get("PYTHONPATH", "")) if p)
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": path, **variables}
    with open(log, "ab") as file:
        output = file if quiet else None
        return subprocess.Popen(command, stdout=output, stderr=file, env=environment, start_new_session=True)


def end(processes: Iterable[subprocess.Popen[Any]], patience_s: float = 0.0) -> None:
    """Kills whatever still runs after `patience_s`."""
    deadline = time.monotonic() + patience_s
    for process in processes:
        try:
            process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            end_tree(process)


def end_tree(process: subprocess.Popen[Any]) -> None:
    """Kills a process with all below it, whatever sessions those have begun (mpirun's ranks have their own groups)."""
    try:
        below = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        below = []
    process.kill()  # first, so that nothing new is started
    for child in below:
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()
