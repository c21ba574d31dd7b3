# Starts the ranks, kills the one that --kill names in the middle of its step, waits for the others, and turns whatever
# went wrong into one error that names the rank. (torch's elastic launcher ends all ranks when one has ended, so it
# could not run --kill.)
from __future__ import annotations

import json
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from uccl_ep.errors import UcclEpError
from uccl_ep.system.own_python import run_module
from uccl_ep.tools.demo.job import OPTIONS_FILE, QUIET_FILE, READY_TO_DIE, error_file, log_file, result_file
from uccl_ep.tools.demo.options import DemoOptions
from uccl_ep.tools.demo.result import RunResult
from uccl_ep.tools.launch import end, signals_stop, start

POLL_SECONDS = 0.01
MAX_ERROR_CHARACTERS = 2000


class RankFailed(UcclEpError):
    """A rank of the demo ended with an error; `trace` is its Python trace or the end of what it wrote."""

    def __init__(self, text: str, trace: str) -> None:
        super().__init__(text)
        self.trace = trace


def launch(options: DemoOptions, show: bool) -> list[RunResult]:
    """Runs all ranks on this host; results of those that --kill leaves, in rank order.

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
            end(processes)
        results = [RunResult.load(result_file(job, rank)) for rank in options.survivors]
        for result in results:
            for interruption in result.interruptions:
                interruption["pause_s"] = interruption["resumed_at"] - killed_at
        return results


def run_ranks(options: DemoOptions, job: Path, processes: list[subprocess.Popen[bytes]]) -> float:
    """Starts the ranks and sees them to their ends. Returns when (time.monotonic) one was killed; 0.0: none was."""
    from torch._C._distributed_c10d import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    command = run_module("uccl_ep.tools.demo.worker", str(job))
    place = {"WORLD_SIZE": str(options.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    # As torchrun says it: the store is here, so that rank 0 need not start one.
    place |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    for rank in range(options.ranks):
        processes.append(start(command, {**place, "RANK": str(rank)}, log_file(job, rank)))
    doomed, step = options.doom or (None, 0)
    killed_at = 0.0
    while True:
        codes = {rank: process.poll() for rank, process in enumerate(processes)}
        check_ends(job, codes, doomed if killed_at else None)
        if None not in codes.values():
            break
        if doomed is not None and not killed_at and store.check([READY_TO_DIE]):
            killed_at = time.monotonic()
            processes[doomed].kill()
        time.sleep(POLL_SECONDS)  # of this process only; nobody waits for it
    if doomed is not None and not killed_at:
        raise RankFailed(f"rank {doomed} ended before it could be killed in step {step + 1}", "")
    return killed_at


def check_ends(job: Path, codes: Mapping[int, int | None], killed: int | None) -> None:
    """Raises RankFailed when a rank has ended badly that was not killed here."""
    failed = {rank: code for rank, code in codes.items() if code and rank != killed}
    if failed:
        raise first_failure(job, failed)


def first_failure(job: Path, codes: Mapping[int, int]) -> RankFailed:
    """The rank that failed first is the cause; the others failed because it had gone. `codes`: exit codes of ranks."""
    told = []
    for path in job.glob("error-*.json"):
        try:
            details = json.loads(path.read_text(encoding="utf-8"))
            told.append((float(details["time"]), int(path.stem.split("-")[1]), details))
        except ValueError:
            continue  # a rank that was killed while it wrote: the others have told more
    crashed = [rank for rank in codes if not error_file(job, rank).exists()]
    if crashed:  # a rank that died without a word explains its peers' errors, not the other way round
        rank = min(crashed)
        code = codes[rank]
        ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
        return RankFailed(f"rank {rank} {ended} and left no message", last_words(job, rank))
    if told:
        _, rank, details = min(told, key=lambda item: item[:2])
        text = f"rank {rank}: {details['kind']}: {details['text']}"
        return RankFailed(text[:MAX_ERROR_CHARACTERS], details["trace"])
    return RankFailed(f"ranks {sorted(codes)} were ended before they could say why", "")


def last_words(job: Path, rank: int) -> str:
    path = log_file(job, rank)
    return path.read_text(encoding="utf-8", errors="replace")[-MAX_ERROR_CHARACTERS:] if path.exists() else ""
