"""What both vendors' checks share: GPUs that are hidden, drivers that do not answer, peers, files, the kernel cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.uccl_ep.fabric import machines
from tests.uccl_ep.tools.doctor.hosts import absent, host, live, told
from uccl_ep.tools.doctor import gpu
from uccl_ep.tools.doctor.host import NVIDIA
from uccl_ep.tools.doctor.record import MISSING, NOT_NEEDED, OK, SLOW

DEVICES = [{"name": f"H100 {i}", "pci": f"0000:0{i}:00.0"} for i in range(4)]


def test_gpu_who_needs_it(tmp_path: Path) -> None:
    with_gpus = host(tmp_path / "a", machines.dgx_h100())
    assert gpu.unneeded(with_gpus, "cuda", NVIDIA, "libcuda.so.1") == ""
    on_cpu = host(tmp_path / "b", machines.dgx_h100(), environment={"UCCL_EP_DEVICE": "cpu"})
    assert gpu.unneeded(on_cpu, "cuda", NVIDIA, "libcuda.so.1") == "UCCL_EP_DEVICE=cpu"
    assert gpu.unneeded(live(tmp_path / "c", load=absent), "cuda", NVIDIA, "libcuda.so.1") == "no such GPU"
    assert gpu.unneeded(live(tmp_path / "d"), "cuda", NVIDIA, "libcuda.so.1") == ""  # a driver without PCI: WSL
    asked = live(tmp_path / "e", load=absent, environment={"UCCL_EP_DEVICE": "cuda:1"})
    assert gpu.unneeded(asked, "cuda", NVIDIA, "libcuda.so.1") == ""


def test_gpu_present(tmp_path: Path) -> None:
    tree = host(tmp_path / "a", machines.dgx_h100())
    assert gpu.present(tree, NVIDIA, {}).found.startswith("8 GPU(s): 0000:1b:00.0, 0000:43:00.0")
    hidden = gpu.present(tree, NVIDIA, {"devices": DEVICES})
    assert told(hidden) == SLOW
    assert hidden.found.startswith("4 GPU(s): H100 0 0000:00:00.0") and hidden.found.endswith("PCI has 8")
    assert told(gpu.present(host(tmp_path / "b"), NVIDIA, {"devices": []})) == MISSING


def test_gpu_driver(tmp_path: Path) -> None:
    assert told(gpu.driver(host(tmp_path / "a"), {}, "v", "fix")) == NOT_NEEDED
    here = live(tmp_path / "b")
    broken = gpu.driver(here, {"error": "cuInit failed with 802"}, "v", "fix it")
    assert told(broken) == MISSING and (broken.found, broken.fix) == ("cuInit failed with 802", "fix it")
    assert gpu.driver(here, {"version": 1}, "CUDA 12.8", "fix it").found == "CUDA 12.8"


def test_gpu_software(tmp_path: Path) -> None:
    here = live(tmp_path)
    assert told(gpu.software(here, {"error": "x"})) == NOT_NEEDED
    lame = gpu.software(here, {"usable": False, "why": "no CuPy"})
    assert told(lame) == MISSING and lame.found == "no CuPy" and "pip install 'cupy-cuda13x>=14'" in lame.fix
    assert told(gpu.software(here, {"usable": True, "why": "fine"})) == OK


@pytest.mark.parametrize("num", [0, 1, 2, 3, 20])
@pytest.mark.parametrize("closed", [False, True])
def test_gpu_peer_access(tmp_path: Path, num: int, closed: bool) -> None:
    peers = [[int(i == j or not closed) for j in range(num)] for i in range(num)]
    answer = gpu.peer_access(live(tmp_path), {"devices": [{}] * num, "peers": peers})
    if num < 2:
        assert told(answer) == NOT_NEEDED
    elif closed:
        assert told(answer) == SLOW and "GPUs 0-1" in answer.found
        assert answer.found.endswith("and more do not") is (num == 20)
    else:
        assert told(answer) == OK and f"all {num}" in answer.found


def test_gpu_device_files(tmp_path: Path) -> None:
    assert told(gpu.device_files(host(tmp_path / "a"), ["/x"], "m")) == NOT_NEEDED
    closed = gpu.device_files(live(tmp_path / "b"), [str(tmp_path / "none")], "docker run --gpus all")
    assert told(closed) == MISSING and closed.fix == "docker run --gpus all"
    (tmp_path / "node").touch()
    assert told(gpu.device_files(live(tmp_path / "c"), [str(tmp_path / "node")], "m")) == OK


def test_gpu_kernel_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "a.bin").touch()
    kept = gpu.kernel_cache(host(tmp_path / "a", environment={"UCCL_EP_CACHE_DIR": str(folder)}))
    assert told(kept) == OK and "kernels, 1 file(s)" in kept.found
    new = gpu.kernel_cache(host(tmp_path / "b", environment={"XDG_CACHE_HOME": str(tmp_path / "x/y")}))
    assert told(new) == OK and "x/y/uccl-ep, 0 file(s)" in new.found and not (tmp_path / "x").exists()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    closed = gpu.kernel_cache(host(tmp_path / "c", environment={"UCCL_EP_CACHE_DIR": str(folder)}))
    assert told(closed) == SLOW and "UCCL_EP_CACHE_DIR" in closed.fix
