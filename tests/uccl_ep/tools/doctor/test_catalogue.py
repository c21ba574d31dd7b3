"""The whole examination: every check on every machine, and on machines that hide or break whatever is looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.uccl_ep.fabric import machines
from tests.uccl_ep.fabric.machines import Recorded
from tests.uccl_ep.tools.doctor.hosts import absent, host, live
from uccl_ep.errors import InvalidArgument
from uccl_ep.tools.doctor import catalogue
from uccl_ep.tools.doctor.catalogue import CHECKS, check_names, examine_host, examine_path
from uccl_ep.tools.doctor.host import Host
from uccl_ep.tools.doctor.record import MISSING, NO_DEVICE, NOT_NEEDED, OK, PATHS, SLOW, UNKNOWN

RECORDED = (
    machines.p5, machines.p5en, machines.p6_b200, machines.dgx_h100, machines.mi300x_thor2, machines.roce_many_gids,
    machines.openshift_pod, machines.slingshot, machines.soft_roce, Recorded,
)  # fmt: skip
GPUS_AND_NICS = ("cuda", "rocm", "verbs", "efa", "libfabric")


def test_catalogue_is_complete() -> None:
    assert tuple(CHECKS) == PATHS and set(catalogue.UNNEEDED) < set(PATHS)
    for path, checks in CHECKS.items():
        names = [check.name for check in checks]
        assert len(names) == len(set(names)) and all(check.path == path for check in checks)


@pytest.mark.parametrize(
    "recorded, states",
    [
        (machines.p5, "ok, -, -, ok, -"),
        (machines.p5en, "ok, -, -, ok, -"),
        (machines.p6_b200, "ok, -, slow, ok, -"),
        (machines.dgx_h100, "ok, -, ok, -, -"),
        (machines.mi300x_thor2, "-, ok, ok, -, -"),
        (machines.roce_many_gids, "ok, -, ok, -, -"),
        (machines.openshift_pod, "ok, -, slow, -, -"),
        (machines.slingshot, "ok, -, -, -, slow"),
        (machines.soft_roce, "-, -, ok, -, -"),
        (Recorded, "-, -, -, -, -"),
    ],
)
def test_catalogue_verdicts_of_real_machines(tmp_path: Path, recorded: Any, states: str) -> None:
    examination = examine_host(host(tmp_path, recorded()), GPUS_AND_NICS)
    seen = ["-" if v.state == NO_DEVICE else v.state for v in examination.verdicts]
    assert ", ".join(seen) == states
    assert not any("the check failed" in f.found for f in examination.findings)
    assert examination.state_of("cuda") in (OK, NO_DEVICE) and examination.state_of("cpu") == ""
    assert all(f.fix and f.needed for f in examination.findings if f.state in (SLOW, UNKNOWN, MISSING))


def test_catalogue_paths_in_their_order(tmp_path: Path) -> None:
    examination = examine_host(host(tmp_path), ("efa", "verbs", "verbs"))
    assert [v.path for v in examination.verdicts] == ["verbs", "efa"]
    assert {f.path for f in examination.findings} == {"verbs", "efa"}


def test_catalogue_runs_no_check_that_nobody_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    made = live(tmp_path, probe=lambda kind: asked.append(kind) or {}, load=absent)
    findings = examine_path(made, "cuda")
    assert asked == [] and {f.state for f in findings} == {NO_DEVICE} and len(findings) == len(CHECKS["cuda"])
    assert findings[0].found == "no NVIDIA GPU"
    on_cpu = live(tmp_path / "cpu", load=absent, environment={"UCCL_EP_DEVICE": "cpu"})
    assert {(f.state, f.found) for f in examine_path(on_cpu, "cuda")} == {(NOT_NEEDED, "UCCL_EP_DEVICE=cpu")}


def test_catalogue_a_gate_that_fails_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(made: Host) -> str:
        raise RuntimeError("no")

    monkeypatch.setitem(catalogue.UNNEEDED, "efa", broken)
    assert examine_host(host(tmp_path), ("efa",)).state_of("efa") == MISSING


def test_catalogue_in_a_bare_container(tmp_path: Path) -> None:
    """No /sys, no /proc, no /dev, no library, no address, a refusing system: findings, and never an exception."""

    def refuse(*arguments: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    nowhere = str(tmp_path / "none")
    bare = live(tmp_path, load=absent, networks=refuse, limits=refuse, cpus=refuse, rlimit=refuse, discover=refuse)
    bare.sys = bare.proc = bare.dev = bare.boot = nowhere
    examination = examine_host(bare)
    assert [v.path for v in examination.verdicts] == list(PATHS)
    assert len(examination.findings) == sum(map(len, CHECKS.values()))
    assert examination.state_of("host") == SLOW


class Hostile(Host):
    """Whatever is asked for fails, in a way of its own."""

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        raise [OSError(5, "Input/output error"), KeyError(name), RuntimeError(name), MemoryError()][len(name) % 4]


def test_catalogue_on_a_hostile_machine() -> None:
    examination = examine_host(Hostile(), GPUS_AND_NICS)
    assert len(examination.findings) == sum(len(CHECKS[path]) for path in GPUS_AND_NICS)
    assert {f.state for f in examination.findings} == {MISSING, UNKNOWN}
    assert {f.name for f in examination.findings if f.state == MISSING} == {
        "library"
    }  # not known is not the same as not there


def test_catalogue_names_are_checked() -> None:
    check_names("--path", PATHS)
    with pytest.raises(InvalidArgument, match="--require must be cpu, host.*; got 'cdua'."):
        check_names("--require", ["cpu", "cdua"])
