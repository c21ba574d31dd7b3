"""Path libfabric: the library's version, Slingshot's NICs, device files and service."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.uccl_ep.fabric import machines
from tests.uccl_ep.fabric.machines import put
from tests.uccl_ep.tools.doctor.hosts import Library, absent, host, live, told
from uccl_ep.tools.doctor import libfabric
from uccl_ep.tools.doctor.record import MISSING, NO_DEVICE, OK, SLOW, examine, judge


@pytest.mark.parametrize(
    "major, minor, state", [(1, 15, OK), (1, 22, OK), (2, 1, OK), (1, 14, MISSING), (0, 99, MISSING)]
)
def test_libfabric_version(tmp_path: Path, major: int, minor: int, state: str) -> None:
    answer = libfabric.library(host(tmp_path, load=lambda name: Library(fi_version=major << 16 | minor)))
    assert answer.state == state and answer.found.startswith(f"{major}.{minor}, ")


def test_libfabric_that_is_not_installed(tmp_path: Path) -> None:
    answer = libfabric.library(host(tmp_path, load=absent))
    assert told(answer) == MISSING and "libfabric1" in answer.fix


def test_libfabric_on_slingshot(tmp_path: Path) -> None:
    made = host(tmp_path, machines.slingshot(), environment={"SLINGSHOT_VNIS": "1025"})
    findings = {check.name: examine(check, made) for check in libfabric.CHECKS}
    assert judge("libfabric", list(findings.values())).words == "can be used", findings
    assert findings["devices"].found == "cxi0, cxi1, cxi2, cxi3 (cxi_core)"
    assert findings["job service"].found == "SLINGSHOT_VNIS=1025"
    outside = host(tmp_path / "b", machines.slingshot())
    assert told(libfabric.service(outside)) == SLOW and "srun" in libfabric.service(outside).fix


def test_libfabric_device_files(tmp_path: Path) -> None:
    made = live(tmp_path, machines.slingshot())
    closed = libfabric.slingshot(made)
    assert told(closed) == MISSING and "cxi3" in closed.fix
    for i in range(4):
        put(tmp_path / f"dev/cxi{i}", "")
    assert told(libfabric.slingshot(made)) == OK


def test_libfabric_asked_for_without_slingshot(tmp_path: Path) -> None:
    made = host(tmp_path, environment={"UCCL_EP_TRANSPORT": "libfabric", "UCCL_EP_PROVIDER": "tcp"})
    assert libfabric.unneeded(made) == ""
    findings = {check.name: examine(check, made) for check in libfabric.CHECKS}
    assert {name for name, f in findings.items() if f.state == NO_DEVICE} == {
        "devices",
        "ports",
        "distance",
        "job service",
    }
    assert findings["devices"].found.endswith("uses tcp") and findings["library"].state == OK
