"""Runs a driver on its ranks, two to a node, each started by `uccl-ep run`: the driver's own code is unchanged."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

from tests.integrations.environment import ROOT
from tests.integrations.report import TOLD, Told, read
from tests.integrations.versions import Integrator

RANKS_PER_NODE = 2
_POLL_S = 0.05
_END_S = 5.0  # what is left running when another rank has failed gets this long to end by itself
_TAIL_CHARACTERS = 6000


class DriverFailed(Exception):
    """A rank of a driver failed or did not end in time; the message ends with what it wrote.

    Attributes:
        told: what came before.
    """

    def __init__(self, text: str, told: Told) -> None:
        super().__init__(text)
        self.told = told


def environment_of(rank: int, job: Path, integrator: Integrator) -> dict[str, str]:
    """What a rank finds; nothing of ours or of Python's is inherited."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("UCCL_EP_", "PYTHON", "CUDA_", "TORCH"))}
    return inherited | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(integrator.ranks),
        "UCCL_EP_RANKS_PER_NODE": str(RANKS_PER_NODE),
        "UCCL_EP_DEVICE": "cpu",
        "PYTHONPATH": str(ROOT),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",  # ranks share the cores
        "CUDA_VISIBLE_DEVICES": "",
        "INTEGRATION_JOB": str(job),
        "INTEGRATION_NAME": integrator.name,
        "INTEGRATION_PACKAGE": integrator.package,
    }


def launch(integrator: Integrator, python: Path) -> Told:
    """What the driver told.

    Raises:
        DriverFailed: a rank ended with an error, or the time was over.
    """
    module = f"tests.integrations.{integrator.driver}"
    command = [str(python), "-m", "uccl_ep", "run", "--", "-m", module]
    with tempfile.TemporaryDirectory(prefix="uccl-ep-integration-") as name:
        job = Path(name)
        processes = []
        for rank in range(integrator.ranks):
            with (job / f"rank-{rank}.log").open("w") as log:
                environment = environment_of(rank, job, integrator)
                process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
            processes.append(process)
        problem = _wait(processes, integrator.limit_s)
        if problem is not None:
            rank, what = problem
            said = (job / f"rank-{rank}.log").read_text(encoding="utf-8", errors="replace")[-_TAIL_CHARACTERS:]
            raise DriverFailed(f"{integrator.name}: rank {rank} {what}\n{said}", read(job / TOLD))
        return read(job / TOLD)


def _wait(processes: list[subprocess.Popen[bytes]], limit_s: float) -> tuple[int, str] | None:
    """Until all have ended. The first that failed and how, or None."""
    deadline, problem = time.monotonic() + limit_s, None
    try:
        while True:
            states = [process.poll() for process in processes]
            if problem is None:
                failed = [rank for rank, state in enumerate(states) if state]
                running = [rank for rank, state in enumerate(states) if state is None]
                if failed:
                    problem = failed[0], f"ended with status {states[failed[0]]}"
                    deadline = min(deadline, time.monotonic() + _END_S)
                elif running and time.monotonic() > deadline:
                    problem = running[0], f"did not end within {limit_s} s"
            if None not in states or time.monotonic() > deadline:
                return problem
            time.sleep(_POLL_S)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
