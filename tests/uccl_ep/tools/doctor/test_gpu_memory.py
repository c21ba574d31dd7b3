"""How NICs reach GPU memory: by what the driver, the kernel and its modules say."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from tests.uccl_ep.fabric import machines
from tests.uccl_ep.tools.doctor.hosts import Library, absent, host, live, told
from uccl_ep.errors import UcclEpError
from uccl_ep.tools.doctor import gpu_memory
from uccl_ep.tools.doctor.record import MISSING, NO_DEVICE, NOT_NEEDED, OK, SLOW

CONFIG = "CONFIG_DMA_SHARED_BUFFER=y\nCONFIG_PCI_P2PDMA=y\n# CONFIG_DMABUF_MOVE_NOTIFY is not set\n"
SYMBOLS = "0000000000000000 t ib_umem_dmabuf_get_pinned [ib_uverbs]\n0000000000000000 T other\nbroken\n"
RELEASE = {"sys/kernel/osrelease": "6.8.0-test\n"}


def driver(dmabuf: int) -> dict[str, Any]:
    return {"devices": [{"name": "H100", "dmabuf": dmabuf}]}


def modern(tmp_path: Path, **changes: Any) -> Any:
    (tmp_path / "boot").mkdir(parents=True)
    (tmp_path / "boot/config-6.8.0-test").write_text(CONFIG)
    proc = {**RELEASE, "kallsyms": SYMBOLS, "driver/nvidia/version": "NVIDIA UNIX x86_64 Kernel Module"}
    values = {"probe": lambda kind: driver(1), **changes}
    return live(tmp_path, values.pop("recorded", machines.dgx_h100()), proc, **values)


def test_gpu_memory_by_dmabuf(tmp_path: Path) -> None:
    answer = gpu_memory.registration(modern(tmp_path))
    assert told(answer) == OK
    assert answer.found.startswith("dmabuf: the GPU's driver exports its memory as one; CONFIG_DMA_SHARED_BUFFER=y")
    assert "CONFIG_DMABUF_MOVE_NOTIFY=n, CONFIG_PCI_P2PDMA=y" in answer.found and "config-6.8.0-test" in answer.found
    assert "symbols: ib_umem_dmabuf_get_pinned;" in answer.found and "closed kernel modules" in answer.found


@pytest.mark.parametrize("module, state", [("nvidia_peermem", OK), ("efa_nv_peermem", OK), ("nothing", SLOW)])
def test_gpu_memory_by_a_module(tmp_path: Path, module: str, state: str) -> None:
    recorded = machines.dgx_h100()
    recorded.modules = (module,)
    answer = gpu_memory.registration(modern(tmp_path, recorded=recorded, probe=lambda kind: driver(0)))
    assert answer.state == state and "the driver exports none for H100" in answer.found
    if state == SLOW:
        assert "modprobe nvidia_peermem" in answer.fix
    else:
        assert f"peer_memory: module {module} is loaded" in answer.found


def test_gpu_memory_asked_for_and_not_there(tmp_path: Path) -> None:
    made = modern(tmp_path, probe=lambda kind: {"error": "gone"}, environment={"UCCL_EP_GPU_MEMORY": "dmabuf"})
    answer = gpu_memory.registration(made)
    assert told(answer) == MISSING and "not known (gone)" in answer.found and "UCCL_EP_GPU_MEMORY" in answer.fix


@pytest.mark.parametrize(
    "load, works",
    [(lambda name: Library(hsa_amd_portable_export_dmabuf=0), True), (lambda name: Library(), False), (absent, False)],
)
def test_gpu_memory_of_amd(tmp_path: Path, load: Any, works: bool) -> None:
    made = modern(tmp_path, recorded=machines.mi300x_thor2(), probe=lambda kind: {"devices": []}, load=load)
    answer = gpu_memory.registration(made)
    assert told(answer) == (OK if works else SLOW)
    assert works or "ib_peer_mem" in answer.fix


def test_gpu_memory_without_gpus_or_wishes(tmp_path: Path) -> None:
    assert gpu_memory.registration(host(tmp_path / "a", machines.soft_roce())).state == NO_DEVICE
    on_cpu = live(tmp_path / "b", machines.dgx_h100(), environment={"UCCL_EP_DEVICE": "cpu"})
    assert gpu_memory.registration(on_cpu).state == NOT_NEEDED
    assert gpu_memory.registration(host(tmp_path / "c", machines.dgx_h100())).state == NOT_NEEDED  # not recorded
    with_module = machines.dgx_h100()
    with_module.modules = ("nvidia_peermem",)
    assert gpu_memory.registration(host(tmp_path / "d", with_module)).state == OK


def test_gpu_memory_where_the_kernel_hides_itself(tmp_path: Path) -> None:
    made = live(tmp_path / "a", machines.dgx_h100(), RELEASE, probe=lambda kind: driver(1))
    answer = gpu_memory.registration(made)
    assert answer.state == OK and "the kernel's configuration cannot be read; its symbols neither" in answer.found
    packed = live(tmp_path / "b", machines.dgx_h100(), {**RELEASE, "kallsyms": ""}, probe=lambda kind: driver(1))
    with gzip.open(tmp_path / "b/proc/config.gz", "wt") as file:
        file.write(CONFIG)
    answer = gpu_memory.registration(packed)
    assert "CONFIG_PCI_P2PDMA=y" in answer.found and "symbols: none of ib_umem" in answer.found
    (tmp_path / "b/proc/config.gz").write_bytes(b"no gzip")
    assert "cannot be read" in gpu_memory.registration(packed).found


def test_gpu_memory_driver_leaves_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    os.close(gpu_memory.Driver("").dmabuf(0, 1))
    with pytest.raises(UcclEpError, match="no such thing"):
        gpu_memory.Driver("no such thing").dmabuf(0, 1)
    assert len(os.listdir("/proc/self/fd")) == before
