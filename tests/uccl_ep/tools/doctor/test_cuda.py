"""Path cuda, with a driver that answers as told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.uccl_ep.fabric import machines
from tests.uccl_ep.tools.doctor.hosts import absent, host, live, told
from uccl_ep.tools.doctor import cuda
from uccl_ep.tools.doctor.record import MISSING, NOT_NEEDED, OK, SLOW, Finding, examine, judge

MODULE = {"driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15\n"}


def device(**changes: Any) -> dict[str, Any]:
    good = {"name": "H100", "pci": "0000:1b:00.0", "major": 9, "minor": 0, "maps_host_memory": 1, "dmabuf": 1}
    return {**good, "fabric_handles": 1, "domain": "c0/7", "no_domain": "", **changes}


def answer(*devices: dict[str, Any]) -> dict[str, Any]:
    peers = [[1] * len(devices) for _ in devices]
    return {"version": 12080, "devices": list(devices), "peers": peers, "usable": True, "why": "H100 with CuPy"}


def findings(tmp_path: Path, told_by_driver: dict[str, Any]) -> dict[str, Finding]:
    (tmp_path / "dev").mkdir()
    for name in ("nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    recorded = machines.Recorded(gpus=machines.dgx_h100().gpus[:2])
    made = live(tmp_path, recorded, MODULE, probe=lambda kind: told_by_driver if kind == "cuda" else {"error": "?"})
    return {check.name: examine(check, made) for check in cuda.CHECKS}


def test_cuda_that_is_whole(tmp_path: Path) -> None:
    seen = findings(tmp_path, answer(device(), device(pci="0000:43:00.0")))
    assert {f.state for f in seen.values()} == {OK}
    assert seen["driver"].found == "CUDA 12.8, NVIDIA's open kernel modules"
    assert seen["compute capability"].found == "H100 9.0"
    assert seen["NVLink domain"].found.startswith("c0/7: UCCL_EP_MNNVL=1, or allow_mnnvl=True, makes one node")
    assert judge("cuda", list(seen.values())).words == "can be used"


def test_cuda_of_an_old_gpu_that_maps_nothing(tmp_path: Path) -> None:
    seen = findings(tmp_path, answer(device(name="V100", major=7, maps_host_memory=0, fabric_handles=0), device()))
    assert told(seen["compute capability"]) == MISSING and "V100 7.0" in seen["compute capability"].found
    assert told(seen["pinned memory"]) == MISSING
    assert told(seen["fabric handles"]) == SLOW
    assert judge("cuda", list(seen.values())).words == "cannot be used: compute capability, pinned memory"


def test_cuda_in_no_domain(tmp_path: Path) -> None:
    seen = findings(tmp_path, answer(device(), device(pci="0000:43:00.0", domain="", no_domain="NVML says so")))
    assert told(seen["NVLink domain"]) == NOT_NEEDED
    assert "GPU 0000:43:00.0: NVML says so" in str(seen["NVLink domain"])


def test_cuda_in_a_container_without_the_driver(tmp_path: Path) -> None:
    seen = findings(tmp_path, {"error": "libcuda.so.1: cannot open shared object file"})
    assert told(seen["driver"]) == MISSING and "--gpus all" in seen["driver"].fix
    assert "libcuda.so.1" in seen["driver"].found
    assert seen["torch, CuPy, NVRTC"].state == seen["peer access"].state == NOT_NEEDED
    assert seen["GPUs"].found.startswith("2 GPU(s): 0000:1b:00.0")


def test_cuda_gate(tmp_path: Path) -> None:
    assert cuda.unneeded(host(tmp_path / "a", machines.dgx_h100())) == ""
    assert cuda.unneeded(host(tmp_path / "b", machines.mi300x_thor2(), load=absent)) == "no NVIDIA GPU"


def test_cuda_of_a_recorded_tree_asks_nothing(tmp_path: Path) -> None:
    made = host(tmp_path, machines.p5en(), environment={"UCCL_EP_CACHE_DIR": str(tmp_path)})
    states = {check.name: examine(check, made).state for check in cuda.CHECKS}
    assert states.pop("GPUs") == states.pop("kernel cache") == OK
    assert set(states.values()) == {NOT_NEEDED}
