"""uccl_ep.examples.launch.ray_actors, on a Ray from its wheel."""

from __future__ import annotations

import subprocess
import tempfile

import pytest

from tests.launchers import environments
from tests.launchers.hosts import ROOT, START_S, rank_environment, ranks_say

EXAMPLE = "uccl_ep.examples.launch.ray_actors"


@pytest.mark.slow  # installs Ray, starts its cluster, and each rank imports torch
@pytest.mark.timeout(500)
def test_examples_launch_ray_actors() -> None:
    python = environments.require("ray==2.60.0")
    command = [str(python), "-m", EXAMPLE, "--ranks", "3"]
    # Nothing leaves this machine, and Ray does not make environments of its own.
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:  # short: it holds sockets
        environment = rank_environment(RAY_TMPDIR=folder, **quiet)
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    said = ranks_say(done.stdout.splitlines())
    assert [line.split(" on ")[0] for line in said] == [f"rank {rank} of 3" for rank in range(3)]
    assert all("node 0 of 1, transport" in line and "came back right" in line for line in said)
