"""Limits of containers and logins: both cgroup versions at any level, locked memory, open files."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tests.uccl_ep.tools.doctor.hosts import GIB, host, told
from uccl_ep.tools.doctor import limits
from uccl_ep.tools.doctor.record import MISSING, OK, SLOW

MEMINFO = {"meminfo": "MemTotal: 64000000 kB\nMemAvailable: 32000000 kB\n"}


def cgroup(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_limits_of_memory(tmp_path: Path) -> None:
    made = host(tmp_path, proc={**MEMINFO, "self/cgroup": "0::/\n"})
    assert told(limits.memory(made)) == OK
    cgroup(tmp_path, {"memory.max": str(GIB)})
    answer = limits.memory(made)
    assert told(answer) == SLOW and "cgroup limit 1 GiB" in answer.found and "--memory" in answer.fix
    with pytest.raises(FileNotFoundError):
        limits.memory(host(tmp_path / "b"))  # the guard makes a finding of it


def test_limits_of_processors(tmp_path: Path) -> None:
    info = {"cpuinfo": "processor: 0\nmodel name\t: Fast 9000\n"}
    answer = limits.processors(host(tmp_path / "a", proc=info))
    assert told(answer) == OK and "4 CPU(s) of Fast 9000" in answer.found and "2 a rank" in answer.needed
    few = host(tmp_path / "b", proc=info, cpus=lambda: frozenset([1]))
    assert told(limits.processors(few)) == SLOW
    greedy = host(tmp_path / "c", proc=info, environment={"UCCL_EP_PROXY_THREADS": "4"})
    assert told(limits.processors(greedy)) == SLOW and "5 a rank" in limits.processors(greedy).needed


@pytest.mark.parametrize(
    "soft, exempt, state",
    [
        (resource.RLIM_INFINITY, False, OK),
        (64 << 10, False, MISSING),
        (64 << 10, True, OK),
        (GIB, False, SLOW),
        (32 * GIB, False, OK),
    ],
)
def test_limits_of_locked_memory(tmp_path: Path, soft: int, exempt: bool, state: str) -> None:
    status = {"self/status": "CapEff:\t0000000000004000\n" if exempt else "CapEff:\t0000000000000000\n"}
    answer = limits.locked_memory(host(tmp_path, proc=status, rlimit=lambda which: (soft, -1)))
    assert told(answer) == state
    assert state == OK or "ulimit -l unlimited" in answer.fix


def test_limits_of_open_files(tmp_path: Path) -> None:
    assert told(limits.open_files(host(tmp_path / "a", rlimit=lambda which: (1024, 4096)))) == SLOW
    assert told(limits.open_files(host(tmp_path / "b", rlimit=lambda which: (4096, 4096)))) == OK
    assert limits.open_files(host(tmp_path / "c")).found == "unlimited (hard limit unlimited)"
