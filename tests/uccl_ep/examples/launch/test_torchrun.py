"""uccl_ep.examples.launch.torchrun, as its docstring says: on one host, and on two."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.launchers import hosts
from tests.launchers.hosts import ROOT, START_S, Hosts, finish, rank_environment, ranks_say

EXAMPLE = "uccl_ep.examples.launch.torchrun"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # each rank imports torch


def test_examples_launch_torchrun_on_one_host() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", EXAMPLE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, env=rank_environment(), cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    said = ranks_say(done.stdout.splitlines())
    assert [line.split(" on ")[0] for line in said] == ["rank 0 of 2", "rank 1 of 2"]
    assert all("node 0 of 1, transport" in line for line in said)


def test_examples_launch_torchrun_on_two_hosts() -> None:
    hosts.require()
    with Hosts(2) as pair:
        where = ["--nnodes", "2", "--nproc-per-node", "2", "--master-addr", pair.name(0), "--master-port", "29500"]
        agents = [
            pair.module(host, "torch.distributed.run", *where, "--node-rank", str(host), "-m", EXAMPLE)
            for host in range(2)
        ]
        said = ranks_say(finish(agents))
    starts = [f"rank {r} of 4 on host-{r // 2 + 1}: node {r // 2} of 2, transport tcp; " for r in range(4)]
    assert [line[: len(start)] for line, start in zip(said, starts, strict=True)] == starts
