# Starts the ranks with torch's elastic launcher (what torchrun runs), waits, and turns whatever went wrong into one
# error that names the rank.
from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from uccl_ep.errors import UcclEpError
from uccl_ep.tools.demo.options import DemoOptions
from uccl_ep.tools.demo.result import RunResult
from uccl_ep.tools.demo.worker import OPTIONS_FILE, QUIET_FILE, error_file, result_file

SHUTDOWN_SECONDS = "5"
"""How long ranks may take to end before they are killed."""
MAX_ERROR_CHARACTERS = 2000


class RankFailed(UcclEpError):
    """A rank of the demo ended with an error; `trace` is its Python trace or the end of what it wrote."""

    def __init__(self, text: str, trace: str) -> None:
        super().__init__(text)
        self.trace = trace


class Stopped(Exception):
    """The user (or the system) asked the demo to end; `signal_number` says how."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number


@contextmanager
def quiet_agent() -> Iterator[None]:
    """The elastic agent tells of a failure in forty lines, which we do in one; and it replaces signal handlers and
    leaves them so, where what follows wants the old ones."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.getsignal(number) for number in numbers}
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        for number, handler in before.items():
            signal.signal(number, handler)


def launch(options: DemoOptions, show: bool) -> list[RunResult]:
    """Runs all ranks on this host and returns their results in rank order.

    Raises RankFailed for the rank that failed first, Stopped when a signal ended the run.
    """
    with tempfile.TemporaryDirectory(prefix="uccl-ep-demo-") as name, quiet_agent():
        job = Path(name)
        options.save(job / OPTIONS_FILE)
        if not show:
            (job / QUIET_FILE).touch()
        run_agent(options, job)
        return [RunResult.load(result_file(job, rank)) for rank in range(options.ranks)]


def run_agent(options: DemoOptions, job: Path) -> None:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", SHUTDOWN_SECONDS)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=options.ranks,
        run_id=str(uuid.uuid4()),
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.1,
        # Standard output stays ours (rank 0 draws the progress); standard error waits in files until it is needed.
        logs_specs=DefaultLogsSpecs(log_dir=str(job / "logs"), redirects=Std.ERR),
    )
    # A command rather than a function: each rank then is a session of its own, and Ctrl-C reaches only the agent,
    # which ends them, instead of drawing a trace from every rank.
    try:
        elastic_launch(config, sys.executable)("-u", "-m", "uccl_ep.tools.demo.worker", str(job))
    except ChildFailedError as error:
        raise first_failure(job, error.failures) from None
    except SignalException as error:
        raise Stopped(int(error.sigval)) from None


def first_failure(job: Path, failures: dict[int, Any]) -> RankFailed:
    """The rank that failed first is the cause; the others failed because it had gone."""
    told = []
    for path in job.glob("error-*.json"):
        try:
            details = json.loads(path.read_text(encoding="utf-8"))
            told.append((float(details["time"]), int(path.stem.split("-")[1]), details))
        except ValueError:
            continue  # a rank that was killed while it wrote: the others have told more
    silent = {rank: failure for rank, failure in failures.items() if not error_file(job, rank).exists()}
    # Once one rank has told its error, the agent ends the others with SIGTERM and then SIGKILL.
    by_agent = (-signal.SIGTERM, -signal.SIGKILL) if told else (-signal.SIGTERM,)
    crashed = {rank: failure for rank, failure in silent.items() if failure.exitcode not in (0, *by_agent)}
    if crashed:  # a rank that died without a word explains its peers' errors, not the other way round
        rank, failure = min(crashed.items())
        ended = (
            f"was killed by {signal.Signals(-failure.exitcode).name}"
            if failure.exitcode < 0
            else f"ended with exit status {failure.exitcode}"
        )
        return RankFailed(f"rank {rank} {ended} and left no message", last_words(job, rank))
    if told:
        _, rank, details = min(told, key=lambda item: item[:2])
        text = f"rank {rank}: {details['kind']}: {details['text']}"
        return RankFailed(text[:MAX_ERROR_CHARACTERS], details["trace"])
    return RankFailed(f"ranks {sorted(failures)} were ended before they could say why", "")


def last_words(job: Path, rank: int) -> str:
    for path in (job / "logs").rglob("stderr.log"):
        if path.parent.name == str(rank):
            return path.read_text(encoding="utf-8", errors="replace")[-MAX_ERROR_CHARACTERS:]
    return ""
