"""How NICs reach GPU memory: each way is tried in its order, each attempt says why, and nothing falls back unasked."""

from __future__ import annotations

import ctypes
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from uccl_ep import NotSupported, UcclEpError
from uccl_ep.fabric.registration import (
    IN_HOST_MEMORY,
    Attempt,
    Kernel,
    amd_dmabuf,
    choose_registration,
    nvidia_dmabuf,
)
from uccl_ep.system.libcuda import Libcuda


class Gpu:
    """A driver that hands out real descriptors, or refuses."""

    def __init__(self, refuses: str = "") -> None:
        self.refuses, self.live, self.given = refuses, 0, []

    def allocate(self, num_bytes: int, shared: bool = False) -> int:
        self.live += 1
        return 0x7F0000000000

    def free(self, address: int) -> None:
        self.live -= 1

    def dmabuf(self, address: int, num_bytes: int) -> int:
        if self.refuses:
            raise UcclEpError(self.refuses)
        self.given.append(os.memfd_create("dmabuf"))
        return self.given[-1]


def kernel(tmp_path: Path, *paths: str, release: str = "6.8.0-1030-aws") -> Kernel:
    for path in paths:
        (tmp_path / path).mkdir(parents=True)
    return Kernel(release, str(tmp_path))


REFUSED = "cuMemGetHandleForAddressRange failed: CUDA_ERROR_NOT_SUPPORTED (801)"


@pytest.mark.parametrize("refuses", ["", "mlx5_1"])
def test_registration_asks_each_nic(tmp_path: Path, refuses: str) -> None:
    gpu, asked = Gpu(), []

    def why_not(nic: str, fd: int, num_bytes: int, address: int) -> str:
        os.fstat(fd)  # it is open
        asked.append((nic, num_bytes, address))
        return "ibv_reg_dmabuf_mr: Operation not supported (errno 95)" if nic == refuses else ""

    loaded = replace(kernel(tmp_path, "module/nvidia_peermem"), why_no_dmabuf=why_not)
    chosen = choose_registration("auto", "cuda", gpu, "thread", loaded, ["mlx5_0", "mlx5_1"])
    assert asked == [(nic, 2 << 20, 0x7F0000000000) for nic in ("mlx5_0", "mlx5_1")]
    assert chosen.path == ("peer_memory" if refuses else "dmabuf") and gpu.live == 0
    assert ("mlx5_1: ibv_reg_dmabuf_mr: Operation not supported" in chosen.reason) == bool(refuses)
    assert ("mlx5_0, mlx5_1 registered a piece of it" in chosen.reason) == (not refuses)
    with pytest.raises(OSError):
        os.fstat(gpu.given[0])


def test_registration_dmabuf_first(tmp_path: Path) -> None:
    gpu = Gpu()
    chosen = choose_registration("auto", "cuda", gpu, "process", kernel(tmp_path, "module/nvidia_peermem"))
    assert chosen.path == "dmabuf" and [a.path for a in chosen.attempts] == ["dmabuf"]
    assert gpu.live == 0 and len(gpu.given) == 1
    with pytest.raises(OSError):  # the probe's descriptor is closed
        os.fstat(gpu.given[0])


@pytest.mark.parametrize(
    "kind, path, says",
    [
        ("cuda", "module/nvidia_peermem", "module nvidia_peermem is loaded"),
        ("cuda", "module/efa_nv_peermem", "module efa_nv_peermem is loaded"),
        ("cuda", "kernel/mm/memory_peers/nv_mem", "client nv_mem is loaded"),
        ("hip", "kernel/mm/memory_peers/amdkfd", "client amdkfd is loaded"),
        ("hip", "module/ib_peer_mem", "module ib_peer_mem is loaded"),
    ],
)
def test_registration_peer_memory_second(tmp_path: Path, kind: str, path: str, says: str) -> None:
    gpu = Gpu(REFUSED)
    chosen = choose_registration("auto", kind, gpu, "thread", kernel(tmp_path, path))
    assert chosen.path == "peer_memory" and gpu.live == 0
    assert chosen.reason == f"dmabuf: {REFUSED}; peer_memory: {says}"


def test_registration_host_last_and_the_reasons_are_all_there(tmp_path: Path) -> None:
    chosen = choose_registration("auto", "cuda", Gpu(REFUSED), "thread", kernel(tmp_path, "module/amdgpu"))
    assert chosen.path == "host" and [(a.path, a.works) for a in chosen.attempts] == [
        ("dmabuf", False), ("peer_memory", False), ("host", True),
    ]  # fmt: skip
    assert REFUSED in chosen.reason and "nvidia_peermem, nv_peer_mem, efa_nv_peermem is loaded" in chosen.reason


def test_registration_addresses_do_not_cross_into_a_proxy_process(tmp_path: Path) -> None:
    chosen = choose_registration("auto", "cuda", Gpu(REFUSED), "process", kernel(tmp_path, "module/nvidia_peermem"))
    assert chosen.path == "host" and "UCCL_EP_PROXY=thread" in chosen.reason


@pytest.mark.parametrize(
    "release, works", [("5.11.0-27-generic", False), ("5.12.1", True), ("6.1", True), ("4", False)]
)
def test_registration_kernels_that_know_dmabufs(tmp_path: Path, release: str, works: bool) -> None:
    chosen = choose_registration("auto", "hip", Gpu(), "thread", kernel(tmp_path, release=release))
    assert chosen.attempts[0].works is works and (works or "needs 5.12" in chosen.reason)
    assert Kernel().version > (2, 6)


@pytest.mark.parametrize("wanted, reason", [("dmabuf", REFUSED), ("peer_memory", "none of the kernel modules")])
def test_registration_what_is_asked_for_and_does_not_work_is_an_error(tmp_path: Path, wanted: str, reason: str) -> None:
    with pytest.raises(NotSupported) as caught:
        choose_registration(wanted, "cuda", Gpu(REFUSED), "thread", kernel(tmp_path))
    assert f"UCCL_EP_GPU_MEMORY={wanted} does not work here" in str(caught.value) and reason in str(caught.value)


def test_registration_host_when_asked_and_on_a_cpu(tmp_path: Path) -> None:
    gpu = Gpu()
    assert choose_registration("host", "cuda", gpu, "thread", kernel(tmp_path)).path == "host" and not gpu.given
    assert choose_registration("dmabuf", "cpu", None, "thread") is IN_HOST_MEMORY
    assert IN_HOST_MEMORY.attempts == (Attempt("host", True, "kernels run on the CPU"),)


class Functions:
    """libcuda's export, or HSA's."""

    def __init__(self, status: int = 0, offset: int = 0) -> None:
        self.status, self.offset, self.seen = status, offset, []

    def cuMemGetHandleForAddressRange(self, handle: Any, *rest: Any) -> int:  # noqa: N802
        self.seen = [value.value for value in rest]
        ctypes.cast(handle, ctypes.POINTER(ctypes.c_int))[0] = 41
        return self.status

    def cuGetErrorName(self, status: Any, text: Any) -> int:  # noqa: N802
        ctypes.cast(text, ctypes.POINTER(ctypes.c_char_p))[0] = b"CUDA_ERROR_NOT_SUPPORTED"
        return 0

    def hsa_amd_portable_export_dmabuf(self, pointer: Any, size: Any, descriptor: Any, offset: Any) -> int:
        self.seen = [pointer.value, size.value]
        ctypes.cast(descriptor, ctypes.POINTER(ctypes.c_int))[0] = os.memfd_create("dmabuf")
        ctypes.cast(offset, ctypes.POINTER(ctypes.c_uint64))[0] = self.offset
        return self.status


def test_registration_nvidias_export() -> None:
    functions = Functions()
    assert nvidia_dmabuf(Libcuda(functions), 1 << 45, 1 << 33) == 41
    assert functions.seen == [1 << 45, 1 << 33, 1, 0]
    with pytest.raises(UcclEpError, match=r"cuMemGetHandleForAddressRange failed: CUDA_ERROR_NOT_SUPPORTED \(801\)"):
        nvidia_dmabuf(Libcuda(Functions(801)), 1, 1)


def test_registration_amds_export() -> None:
    functions = Functions()
    os.close(amd_dmabuf(functions, 1 << 45, 4096))
    assert functions.seen == [1 << 45, 4096]
    with pytest.raises(UcclEpError, match="status 0x1001"):
        amd_dmabuf(Functions(0x1001), 1, 1)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(UcclEpError, match="4096 bytes into its dma-buf"):
        amd_dmabuf(Functions(offset=4096), 1, 1)
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(UcclEpError, match="version 5.6"):
        amd_dmabuf(object(), 1, 1)
