"""Path cpu on this machine, which can run it, and on others, which cannot."""

from __future__ import annotations

import importlib
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.uccl_ep.fabric import machines
from tests.uccl_ep.tools.doctor.hosts import host, told
from uccl_ep.tools.doctor import cpu
from uccl_ep.tools.doctor.host import Host
from uccl_ep.tools.doctor.record import MISSING, OK, SLOW, examine

BEYOND = {"NUMA", "sysfs", "memory", "processors"}  # what a small machine may well lack


def test_cpu_this_machine_is_ready() -> None:
    findings = {check.name: examine(check, Host(environment={})) for check in cpu.CHECKS}
    assert {name: f.state for name, f in findings.items() if name not in BEYOND} == dict.fromkeys(
        set(findings) - BEYOND, OK
    )
    assert not any(f.state == MISSING for f in findings.values())
    assert "uccl-ep" in findings["native module"].found and "torch" in findings["packages"].found


@pytest.mark.parametrize(
    "text, version",
    [
        ("2.4.1+cpu", (2, 4)),
        ("6.8.0-1030-aws", (6, 8)),
        ("1.26rc1", (1, 261)),
        ("7", (0, 0)),
        ("", (0, 0)),
        ("x.y", (0, 0)),
    ],
)
def test_cpu_versions(text: str, version: tuple[int, int]) -> None:
    assert cpu.version_of(text) == version


def test_cpu_old_python_and_linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = host(tmp_path, proc={"sys/kernel/osrelease": "3.10.0-1160.el7\n"})
    answer = cpu.linux(made)
    assert told(answer) == MISSING and answer.found.startswith("3.10.0-1160.el7") and "4.18" in answer.needed
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    assert told(cpu.python(made)) == MISSING


def test_cpu_without_the_native_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> Any:
        raise ImportError("version `GLIBC_2.99' not found")

    monkeypatch.setattr(importlib, "import_module", fail)
    answer = cpu.native_module(host(tmp_path))
    assert told(answer) == MISSING and "GLIBC_2.99" in answer.found and "pip install" in answer.fix


def test_cpu_packages_that_are_old_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"torch": "2.3.9", "numpy": "2.0.0", "psutil": "5.9.0"}

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    answer = cpu.packages(host(tmp_path))
    assert told(answer) == MISSING
    assert "torch 2.3.9 is older than 2.4" in answer.found and "msgpack is not installed" in answer.found


def test_cpu_variables(tmp_path: Path) -> None:
    bad = cpu.variables(host(tmp_path / "a", environment={"UCCL_EP_RINGS": "0"}))
    assert told(bad) == MISSING and "UCCL_EP_RINGS" in bad.found
    odd = cpu.variables(host(tmp_path / "b", environment={"UCCL_EP_RNGS": "1"}))
    assert told(odd) == SLOW and "Nearest: UCCL_EP_RINGS" in odd.found
    good = cpu.variables(host(tmp_path / "c", environment={"UCCL_EP_RINGS": "1", "HOME": "x"}))
    assert told(good) == OK and good.found == "UCCL_EP_RINGS=1"
    assert cpu.variables(host(tmp_path / "d")).found == "all at their defaults"


def test_cpu_numa_nodes_and_what_hides_them(tmp_path: Path) -> None:
    seen = cpu.numa(host(tmp_path / "a", machines.dgx_h100()))
    assert told(seen) == OK and "2 node(s) with 112, 112 CPUs; this process on node 0" in seen.found
    across = host(tmp_path / "b", machines.dgx_h100(), cpus=lambda: frozenset([0, 60]))
    assert "CPUs of several" in cpu.numa(across).found
    bare = machines.Recorded(numa_cpus=())
    assert told(cpu.numa(host(tmp_path / "c", bare))) == SLOW


def test_cpu_unreadable_entries_of_sysfs_are_a_finding(tmp_path: Path) -> None:
    answer = cpu.sysfs(host(tmp_path / "a", machines.openshift_pod()))
    assert told(answer) == SLOW
    assert "entries cannot be read" in answer.found and "mlx5_0/ports/1/state: Is a directory" in answer.found
    whole = cpu.sysfs(host(tmp_path / "b", machines.dgx_h100()))
    assert told(whole) == OK and whole.found == "8 GPU(s), 12 NIC(s)"
