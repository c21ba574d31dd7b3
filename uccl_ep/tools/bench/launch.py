"""Starts the ranks of a measurement, plainly or under mpirun, waits with a deadline, and collects their files."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from uccl_ep.errors import UcclEpError
from uccl_ep.system.extras import install
from uccl_ep.system.own_python import run_module
from uccl_ep.tools.bench.collectives import mpirun
from uccl_ep.tools.bench.options import BenchOptions
from uccl_ep.tools.bench.worker import SPEC
from uccl_ep.tools.launch import end, start

START_S = 240.0
"""What starting, trying every form of a peer and the last round may take beside the timed rounds."""
END_S = 5.0
"""What the processes have to end by themselves."""
_LAST_WORDS = 1500  # characters


def commands(options: BenchOptions, folder: Path) -> list[list[str]]:
    """Command lines to start: one a rank, or one mpirun when Open MPI is among the peers.

    Several nodes on one host are told apart by us alone, so Open MPI gets tcp between all ranks then, as gloo has.
    """
    worker = run_module("uccl_ep.tools.bench.worker", str(folder))
    if "openmpi" not in options.peers:
        return [[*worker, str(rank)] for rank in range(options.ranks)]
    launcher = mpirun()
    if launcher is None:
        raise UcclEpError(f"bench: mpirun was not found: {install('mpi')}, or leave out --peer openmpi")
    network = ["--mca", "btl", "self,tcp", "--mca", "pml", "ob1"] if options.num_nodes > 1 else []
    return [[launcher, "-n", str(options.ranks), "--oversubscribe", "--bind-to", "none", *network, *worker]]


def environment() -> dict[str, str]:
    """What the ranks' environment has beside our own: one thread each, and Open MPI may run as root where we do
    (containers)."""
    extra = {"OMP_NUM_THREADS": "1"}
    if os.geteuid() == 0:
        extra |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return extra


def launch(options: BenchOptions) -> list[dict[str, Any]]:
    """Runs all ranks on this host and returns their reports, in rank order.

    Raises:
        UcclEpError: a rank failed (the first one that said so is named), or the deadline passed.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="uccl-ep-bench-") as name:
        folder = Path(name)
        (folder / SPEC).write_text(json.dumps({"options": asdict(options), "port": port}), encoding="utf-8")
        started = [start(c, environment(), folder / "log", quiet=True) for c in commands(options, folder)]
        try:
            _wait(options, folder, started)
        finally:
            end(started, END_S)
        return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(options.ranks)]


def _wait(options: BenchOptions, folder: Path, started: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + options.budget_s + START_S
    while True:
        errors = sorted(folder.glob("error-*.txt"), key=lambda path: path.stat().st_mtime)
        if errors:
            raise UcclEpError(f"rank {errors[0].stem.split('-')[1]}: {errors[0].read_text()}")
        if len(list(folder.glob("rank-*.json"))) == options.ranks:
            return
        ended = [p.returncode for p in started if p.poll() is not None]
        if any(ended) or len(ended) == len(started):
            _last_look(options, folder, ended)
            return
        if time.monotonic() > deadline:
            allowed = f"{options.budget_s:.0f} s of rounds and {START_S:.0f} s beside them"
            raise UcclEpError(f"bench: the ranks had not ended after {allowed}; fewer ranks or tokens take less")
        time.sleep(0.05)


def _last_look(options: BenchOptions, folder: Path, ended: list[int]) -> None:
    """A process has ended: either all files are there by now, or something went wrong without a word."""
    for path in folder.glob("error-*.txt"):
        raise UcclEpError(f"rank {path.stem.split('-')[1]}: {path.read_text()}")
    if len(list(folder.glob("rank-*.json"))) < options.ranks:
        log = (folder / "log").read_text(errors="replace")[-_LAST_WORDS:].strip()
        raise UcclEpError(
            f"bench: a process ended with status {max(ended, key=abs)} and no result: {log or 'no output'}"
        )
