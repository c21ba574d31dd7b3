"""Hosts are hosts: a name and an address each, processes that the other cannot see, and nothing left of them."""

from __future__ import annotations

import os

import pytest

from tests.launchers import hosts
from tests.launchers.hosts import Hosts, finish, rank_environment

IDENTITY = (
    "import os, socket; from pathlib import Path; "
    "print(os.stat('/proc/self/ns/pid').st_ino, socket.gethostbyname(socket.gethostname()), "
    "len([p for p in Path('/proc').iterdir() if p.name.isdecimal()]))"
)


def test_launchers_hosts_are_apart_and_reach_each_other_by_name() -> None:
    hosts.require()
    with Hosts(2) as pair:
        asked = [pair.start(host, ["python3", "-c", IDENTITY]) for host in range(2)]
        names = [pair.start(host, ["getent", "hosts", pair.name(1 - host)]) for host in range(2)]
        here, there = (line.split() for line in finish(asked))
        assert here[0] != there[0] != str(os.stat("/proc/self/ns/pid").st_ino)
        assert [here[1], there[1]] == [pair.address(0), pair.address(1)]
        assert int(here[2]) <= 4 and int(there[2]) <= 4  # not this machine's processes
        assert [line.split()[0] for line in finish(names)] == [pair.address(1), pair.address(0)]


def test_launchers_hosts_power_off_ends_what_runs_there_and_only_there() -> None:
    hosts.require()
    with Hosts(2) as pair:
        runs = [pair.start(host, ["sh", "-c", "echo runs; exec sleep infinity"]) for host in range(2)]
        for run in runs:
            assert run.stdout is not None and run.stdout.readline() == "runs\n"
        pair.power_off(1)
        assert runs[1].wait(20) != 0
        assert runs[0].poll() is None
        left = pair._network.left()
        assert left
    assert not pair._network.left()
    assert runs[0].poll() is not None, "the end of the context ends every process"


def test_launchers_finish_tells_of_failures() -> None:
    hosts.require()
    with Hosts(1) as one:
        good, bad = one.start(0, ["echo", "fine"]), one.start(0, ["sh", "-c", "echo broken; exit 3"])
        with pytest.raises(AssertionError, match=r"\[0, 3\](.|\n)*broken"):
            finish([good, bad])


def test_launchers_ranks_get_nothing_of_another_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_WORLD_SIZE", "SLURM_PROCID", "UCCL_EP_RANKS_PER_NODE", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("KEPT", "yes")
    given = rank_environment(MASTER_PORT="1")
    assert given["KEPT"] == "yes" and given["MASTER_PORT"] == "1"
    assert not {"RANK", "LOCAL_WORLD_SIZE", "SLURM_PROCID", "UCCL_EP_RANKS_PER_NODE"} & set(given)
