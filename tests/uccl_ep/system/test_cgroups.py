"""Limits of cgroups: both versions, at any level, and files that say nothing or nonsense."""

from __future__ import annotations

from pathlib import Path

import pytest

from uccl_ep.system.cgroups import Cgroups

GIB = 1 << 30


def tree(root: Path, membership: str, files: dict[str, str]) -> Cgroups:
    """A recorded /proc and /sys of a process in those cgroups."""
    for name, text in {"proc/self/cgroup": membership, **{f"sys/fs/cgroup/{n}": t for n, t in files.items()}}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Cgroups(str(root / "proc"), str(root / "sys"))


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
def test_cgroups_limits(tmp_path: Path, membership: str, files: dict[str, str], memory: int, cpus: float) -> None:
    made = tree(tmp_path, membership, files)
    assert (made.memory_limit(), made.cpu_limit()) == (memory, cpus)


def test_cgroups_here_and_where_there_are_none(tmp_path: Path) -> None:
    assert Cgroups().cpu_limit() >= 0 and Cgroups().memory_limit() >= 0
    nowhere = Cgroups(str(tmp_path / "proc"), str(tmp_path / "sys"))
    assert (nowhere.memory_limit(), nowhere.cpu_limit()) == (0, 0.0)


def test_cgroups_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    made = tree(tmp_path, "0::/\n", {})
    (tmp_path / "sys/fs/cgroup/memory.max").mkdir(parents=True)
    with pytest.raises(OSError):
        made.memory_limit()
