# The launcher of a run with --kill: starts the ranks, kills the doomed one in the middle of its step, and waits for the
# others. (torch's elastic launcher ends all ranks when one has ended, so it is of no use here.)
from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from uccl_ep.tools.demo.launch import RankFailed, Stopped, first_failure
from uccl_ep.tools.demo.options import DemoOptions
from uccl_ep.tools.demo.result import RunResult
from uccl_ep.tools.demo.worker import OPTIONS_FILE, QUIET_FILE, result_file

POLL_SECONDS = 0.01
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Failure:
    """A rank's end, as first_failure reads it."""

    def __init__(self, exitcode: int) -> None:
        self.exitcode = exitcode


@contextmanager
def signals_stop() -> Iterator[None]:
    """Signals become Stopped while the ranks run, so that none is left behind."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def launch_and_kill(options: DemoOptions, show: bool) -> list[RunResult]:
    """Runs all ranks on this host; results of those that are left, in rank order.

    Raises RankFailed for the rank that failed first without having been killed here, Stopped when a signal ended it.
    """
    with tempfile.TemporaryDirectory(prefix="uccl-ep-demo-") as name, signals_stop():
        job = Path(name)
        options.save(job / OPTIONS_FILE)
        if not show:
            (job / QUIET_FILE).touch()
        processes: list[subprocess.Popen[bytes]] = []
        try:
            killed_at = run_ranks(options, job, processes)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
        results = [RunResult.load(result_file(job, rank)) for rank in options.survivors]
        for result in results:
            for interruption in result.interruptions:
                interruption["pause_s"] = interruption["resumed_at"] - killed_at
        return results


def run_ranks(options: DemoOptions, job: Path, processes: list[subprocess.Popen[bytes]]) -> float:
    """Starts the ranks and sees them to their ends. Returns when (time.monotonic) the doomed one was killed."""
    from torch._C._distributed_c10d import TCPStore

    assert options.doom is not None
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for rank in range(options.ranks):
        processes.append(start_rank(options, job, rank, store.port))
    victim, killed_at = options.doom[0], 0.0
    while any(process.poll() is None for process in processes):
        if not killed_at and ready_to_die(store):
            killed_at = time.monotonic()
            processes[victim].kill()
        check_ends(job, processes, victim if killed_at else None)
        time.sleep(POLL_SECONDS)  # of this process only; nobody waits for it
    check_ends(job, processes, victim if killed_at else None)
    if not killed_at:
        raise RankFailed(f"rank {victim} ended before it could be killed in step {options.doom[1] + 1}", "")
    return killed_at


def start_rank(options: DemoOptions, job: Path, rank: int, port: int) -> subprocess.Popen[bytes]:
    logs = job / "logs" / str(rank)
    logs.mkdir(parents=True)
    environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(options.ranks)}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment.setdefault("OMP_NUM_THREADS", "1")
    command = [sys.executable, "-u", "-m", "uccl_ep.tools.demo.worker", str(job)]
    with open(logs / "stderr.log", "wb") as log:
        # A session of its own: Ctrl-C reaches only this process, which ends the ranks.
        return subprocess.Popen(command, env=environment, stderr=log, start_new_session=True)


def ready_to_die(store: Any) -> bool:
    from uccl_ep.tools.demo.survive import READY_TO_DIE

    return bool(store.check([READY_TO_DIE]))


def check_ends(job: Path, processes: Sequence[subprocess.Popen[bytes]], killed: int | None) -> None:
    """Raises RankFailed when a rank has ended badly that was not killed here."""
    ends = {rank: process.poll() for rank, process in enumerate(processes)}
    failures = {rank: _Failure(code) for rank, code in ends.items() if code and rank != killed}
    if failures:
        raise first_failure(job, failures)
