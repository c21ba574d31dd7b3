"""uccl_ep.examples.launch.slurm: node lists, places, and two hosts whose tasks have only srun's variables."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tests.launchers import hosts
from tests.launchers.hosts import ROOT, START_S, Hosts, finish, rank_environment, ranks_say
from uccl_ep.examples.launch.slurm import FIRST_PORT, PORTS, first_host, place

EXAMPLE = "uccl_ep.examples.launch.slurm"


def variables(rank: int, size: int = 4, nodes: str = "host-[1-2]") -> dict[str, str]:
    """As srun sets them, of those that the example reads."""
    job = {"SLURM_JOB_ID": "81234", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": nodes}
    return {**job, "SLURM_PROCID": str(rank), "SLURM_NTASKS": str(size)}


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu1", "gpu1"),
        ("gpu1,login2", "gpu1"),
        ("gpu[07-09]", "gpu07"),
        ("gpu[12,15-18],gpu[30-31]", "gpu12"),
        ("rack1-node[001-128]-ib", "rack1-node001-ib"),
        ("a.cluster.example", "a.cluster.example"),
    ],
)
def test_examples_launch_slurm_first_host(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


@pytest.mark.parametrize("nodes", ["", "[1-2]", "gpu[", "gpu 1", ",gpu1"])
def test_examples_launch_slurm_refuses_what_is_no_node_list(nodes: str) -> None:
    with pytest.raises(ValueError, match="SLURM_STEP_NODELIST=.*host names"):
        first_host(nodes)


def test_examples_launch_slurm_place() -> None:
    one, other = place(variables(3)), place({**variables(3), "SLURM_STEP_ID": "1"})
    assert (one.rank, one.size, one.address) == (3, 4, "host-1")
    assert FIRST_PORT <= one.port < FIRST_PORT + PORTS and other.port == one.port + 1  # steps do not meet
    for name in variables(0):
        with pytest.raises(ValueError, match=name):
            place({k: v for k, v in variables(0).items() if k != name})


@pytest.mark.slow  # each rank imports torch
@pytest.mark.timeout(300)
def test_examples_launch_slurm_on_two_hosts_by_variables() -> None:
    hosts.require()
    with Hosts(2) as pair:
        tasks = [pair.module(rank // 2, EXAMPLE, **variables(rank)) for rank in range(4)]
        said = ranks_say(finish(tasks))
    starts = [f"rank {r} of 4 on host-{r // 2 + 1}: node {r // 2} of 2, transport tcp; " for r in range(4)]
    assert [line[: len(start)] for line, start in zip(said, starts, strict=True)] == starts


@pytest.mark.slow  # each rank imports torch
@pytest.mark.timeout(300)
def test_examples_launch_slurm_by_srun() -> None:
    if shutil.which("srun") is None:
        pytest.skip("NOT RUN: srun is not installed; its variables are tested by hand")
    command = ["srun", "--ntasks", "2", "--overlap", sys.executable, "-m", EXAMPLE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, env=rank_environment(), cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line[:11] for line in ranks_say(done.stdout.splitlines())] == ["rank 0 of 2", "rank 1 of 2"]
