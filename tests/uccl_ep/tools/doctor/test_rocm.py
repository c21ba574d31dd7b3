"""Path rocm, with a driver that answers as told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.uccl_ep.fabric import machines
from tests.uccl_ep.fabric.machines import put
from tests.uccl_ep.tools.doctor.hosts import absent, host, live, told
from uccl_ep.tools.doctor import rocm
from uccl_ep.tools.doctor.record import MISSING, NOT_NEEDED, OK, Finding, examine

DEVICE = {"name": "AMD Instinct MI300X", "pci": "0000:05:00.0"}
WHOLE = {
    "version": 60342134,
    "devices": [DEVICE] * 8,
    "peers": [[1] * 8] * 8,
    "usable": True,
    "why": "MI300X with CuPy",
}


def findings(tmp_path: Path, told_by_driver: dict[str, Any], kfd: bool = True) -> dict[str, Finding]:
    if kfd:
        put(tmp_path / "dev/kfd", "")
    made = live(
        tmp_path, machines.mi300x_thor2(), probe=lambda kind: told_by_driver if kind == "hip" else {"error": "?"}
    )
    put(tmp_path / "sys/module/amdgpu/version", "6.10.5")
    return {check.name: examine(check, made) for check in rocm.CHECKS}


def test_rocm_that_is_whole(tmp_path: Path) -> None:
    seen = findings(tmp_path, WHOLE)
    assert {f.state for f in seen.values()} == {OK}
    assert seen["driver"].found == "HIP 6.3, amdgpu 6.10.5"
    assert "8 GPU(s): AMD Instinct MI300X" in seen["GPUs"].found


def test_rocm_in_a_container_without_devices(tmp_path: Path) -> None:
    seen = findings(tmp_path, {"error": "hipInit failed with 100"}, kfd=False)
    assert told(seen["driver"]) == told(seen["device files"]) == MISSING
    assert "--device=/dev/kfd" in seen["device files"].fix and "hipInit failed" in seen["driver"].found


def test_rocm_gate(tmp_path: Path) -> None:
    assert rocm.unneeded(host(tmp_path / "a", machines.mi300x_thor2())) == ""
    assert rocm.unneeded(host(tmp_path / "b", machines.dgx_h100(), load=absent)) == "no AMD GPU"


def test_rocm_of_a_recorded_tree_asks_nothing(tmp_path: Path) -> None:
    made = host(tmp_path, machines.mi300x_thor2(), environment={"UCCL_EP_CACHE_DIR": str(tmp_path)})
    states = {check.name: examine(check, made).state for check in rocm.CHECKS}
    assert states.pop("GPUs") == states.pop("kernel cache") == OK
    assert set(states.values()) == {NOT_NEEDED}
