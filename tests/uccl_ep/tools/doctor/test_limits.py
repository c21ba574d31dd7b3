"""Limits of containers and logins: both cgroup versions at any level, locked memory, open files."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tests.uccl_ep.tools.doctor.hosts import GIB, host, told
from uccl_ep.tools.doctor import limits
from uccl_ep.tools.doctor.record import MISSING, READY

MEMINFO = {"meminfo": "MemTotal: 64000000 kB\nMemAvailable: 32000000 kB\n"}


def cgroup(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    "membership, files, memory, cpus",
    [
        ("0::/\n", {"memory.max": str(3 * GIB), "cpu.max": "150000 100000"}, 3 * GIB, 1.5),
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "4096", "cpu.max": "max 100000"}, 4096, 0.0),
        ("0::/../..\n", {"memory.max": "8192"}, 8192, 0.0),
        (
            "4:memory:/pod\n2:cpu,cpuacct:/pod\n",
            {
                "memory/pod/memory.limit_in_bytes": str(5 * GIB),
                "cpu,cpuacct/pod/cpu.cfs_quota_us": "200000",
                "cpu,cpuacct/pod/cpu.cfs_period_us": "100000",
            },
            5 * GIB,
            2.0,
        ),
        (
            "4:memory:/\n2:cpu:/\n",
            {"memory/memory.limit_in_bytes": "9223372036854771712", "cpu/cpu.cfs_quota_us": "-1"},
            0,
            0.0,
        ),
        ("nonsense\n\n:::\n", {}, 0, 0.0),
        ("0::/\n", {"memory.max": "not a number", "cpu.max": "x y"}, 0, 0.0),
    ],
)
def test_limits_of_a_cgroup(tmp_path: Path, membership: str, files: dict[str, str], memory: int, cpus: float) -> None:
    made = host(tmp_path, proc={"self/cgroup": membership})
    cgroup(tmp_path, files)
    assert (limits.memory_limit(made), limits.cpu_limit(made)) == (memory, cpus)


def test_limits_of_memory(tmp_path: Path) -> None:
    made = host(tmp_path, proc={**MEMINFO, "self/cgroup": "0::/\n"})
    assert told(limits.memory(made)) == (READY, True)
    cgroup(tmp_path, {"memory.max": str(GIB)})
    answer = limits.memory(made)
    assert told(answer) == (MISSING, False) and "cgroup limit 1 GiB" in answer.found and "--memory" in answer.mend
    with pytest.raises(FileNotFoundError):
        limits.memory(host(tmp_path / "b"))  # the guard makes a finding of it


def test_limits_of_processors(tmp_path: Path) -> None:
    info = {"cpuinfo": "processor: 0\nmodel name\t: Fast 9000\n"}
    answer = limits.processors(host(tmp_path / "a", proc=info))
    assert told(answer) == (READY, True) and "4 CPU(s) of Fast 9000" in answer.found and "2 a rank" in answer.needed
    few = host(tmp_path / "b", proc=info, cpus=lambda: frozenset([1]))
    assert told(limits.processors(few)) == (MISSING, False)
    greedy = host(tmp_path / "c", proc=info, environment={"UCCL_EP_PROXY_THREADS": "4"})
    assert told(limits.processors(greedy)) == (MISSING, False) and "5 a rank" in limits.processors(greedy).needed


@pytest.mark.parametrize(
    "soft, exempt, state, blocks",
    [
        (resource.RLIM_INFINITY, False, READY, True),
        (64 << 10, False, MISSING, True),
        (64 << 10, True, READY, True),
        (GIB, False, MISSING, False),
        (32 * GIB, False, READY, True),
    ],
)
def test_limits_of_locked_memory(tmp_path: Path, soft: int, exempt: bool, state: str, blocks: bool) -> None:
    status = {"self/status": "CapEff:\t0000000000004000\n" if exempt else "CapEff:\t0000000000000000\n"}
    answer = limits.locked_memory(host(tmp_path, proc=status, rlimit=lambda which: (soft, -1)))
    assert told(answer) == (state, blocks)
    assert state == READY or "ulimit -l unlimited" in answer.mend


def test_limits_of_open_files(tmp_path: Path) -> None:
    assert told(limits.open_files(host(tmp_path / "a", rlimit=lambda which: (1024, 4096)))) == (MISSING, False)
    assert told(limits.open_files(host(tmp_path / "b", rlimit=lambda which: (4096, 4096)))) == (READY, True)
    assert limits.open_files(host(tmp_path / "c")).found == "unlimited (hard limit unlimited)"
