"""How a NIC reaches a GPU's memory, and how that was found out: dma-buf, a peer-memory module, or not at all.

Each way is tried, and each attempt leaves its reason: a machine that falls back to pinned host memory is several times
slower, and its user must be able to read why. A way that is asked for and does not work is an error, never a fallback.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from uccl_ep import _native
from uccl_ep.errors import NotSupported, UcclEpError
from uccl_ep.system.libcuda import Libcuda

PATHS = ("dmabuf", "peer_memory", "host")  # in the order of preference
_PROBE_BYTES = 2 << 20
_LEAST_KERNEL = (5, 12)  # the first whose RDMA core registers a dma-buf
PEER_MODULES = {  # kernel modules through which plain registration of GPU memory works
    "cuda": ("nvidia_peermem", "nv_peer_mem", "efa_nv_peermem"),
    "hip": ("ib_peer_mem", "amd_peer_direct"),
}
_MEMORY_PEERS = "kernel/mm/memory_peers"  # where peer-memory clients announce themselves
_PEERS = {"cuda": ("nv_mem", "nvidia-peermem"), "hip": ("amdkfd",)}
_DMA_BUF_FD = 1  # CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD


@dataclass(frozen=True)
class Attempt:
    """One way, whether it works, and why (not)."""

    path: str
    works: bool
    reason: str


@dataclass(frozen=True)
class Registration:
    """The way that is taken, and all attempts, in the order in which they were made."""

    path: str
    attempts: tuple[Attempt, ...]

    @property
    def reason(self) -> str:
        """All attempts in one line."""
        return "; ".join(f"{a.path}: {a.reason}" for a in self.attempts)


IN_HOST_MEMORY = Registration("host", (Attempt("host", True, "kernels run on the CPU"),))


class DmabufSource(Protocol):
    """What is asked of a GPU's driver (uccl_ep.gpu.driver)."""

    def allocate(self, num_bytes: int, shared: bool = False) -> int: ...

    def free(self, address: int) -> None: ...

    def dmabuf(self, address: int, num_bytes: int) -> int: ...


@dataclass(frozen=True)
class Kernel:
    """What the operating system says: its release, what lies under `root`, and its drivers of NICs of a dma-buf."""

    release: str = ""
    root: str = "/sys"
    why_no_dmabuf: Callable[[str, int, int, int], str] = _native.why_no_dmabuf

    @property
    def version(self) -> tuple[int, int]:
        """(major, minor) of "6.8.0-1030-aws"."""
        parts = (self.release or os.uname().release).split(".")
        digits = ["".join(c for c in part if c.isdigit()) for part in parts[:2]]
        return int(digits[0] or 0), int(digits[1] or 0) if len(digits) > 1 else 0

    def has(self, path: str) -> bool:
        """Whether something exists under the root."""
        return os.path.exists(os.path.join(self.root, path))


def choose_registration(
    wanted: str,
    kind: str,
    driver: DmabufSource | None,
    proxy: str,
    kernel: Kernel = Kernel(),  # noqa: B008 - frozen
    nics: Sequence[str] = (),
) -> Registration:
    """The way that NICs reach the memory of this rank's GPU.

    Args:
        wanted: UCCL_EP_GPU_MEMORY: "auto" or one of PATHS.
        kind: "cpu", "cuda" or "hip".
        proxy: UCCL_EP_PROXY: a dma-buf crosses into another process, an address does not.
        nics: RDMA devices that the rank may use: each of them registers a small dma-buf, or dma-buf is not the way.

    Raises:
        NotSupported: the way that was asked for does not work here; says why.
    """
    if driver is None:
        return IN_HOST_MEMORY
    tries: dict[str, Callable[[], Attempt]] = {
        "dmabuf": lambda: _try_dmabuf(driver, kernel, nics),
        "peer_memory": lambda: _try_peer_memory(kind, proxy, kernel),
        "host": lambda: Attempt("host", True, "pinned memory, which every NIC reaches and every row crosses PCIe for"),
    }
    attempts: list[Attempt] = []
    for path in PATHS if wanted == "auto" else (wanted,):
        attempts.append(tries[path]())
        if attempts[-1].works:
            return Registration(path, tuple(attempts))
    raise NotSupported(
        f"UCCL_EP_GPU_MEMORY={wanted} does not work here: {attempts[-1].reason}. With auto, what works is taken"
    )


def _try_dmabuf(driver: DmabufSource, kernel: Kernel, nics: Sequence[str]) -> Attempt:
    if kernel.version < _LEAST_KERNEL:
        least = ".".join(map(str, _LEAST_KERNEL))
        return Attempt("dmabuf", False, f"Linux {'.'.join(map(str, kernel.version))} registers none (needs {least})")
    try:
        address = driver.allocate(_PROBE_BYTES, shared=True)
        try:
            fd = driver.dmabuf(address, _PROBE_BYTES)
            try:
                refusals = {nic: kernel.why_no_dmabuf(nic, fd, _PROBE_BYTES, address) for nic in nics}
            finally:
                os.close(fd)
        finally:
            driver.free(address)
    except UcclEpError as error:
        return Attempt("dmabuf", False, str(error))
    refused = [f"{nic}: {why}" for nic, why in refusals.items() if why]
    if refused:
        return Attempt("dmabuf", False, f"the GPU's driver exports its memory, and {'; '.join(refused)}")
    taken = f", and {', '.join(nics)} registered a piece of it" if nics else ""
    return Attempt("dmabuf", True, f"the GPU's driver exports its memory as one{taken}")


def _try_peer_memory(kind: str, proxy: str, kernel: Kernel) -> Attempt:
    modules = PEER_MODULES.get(kind, ())
    loaded = [f"module {name}" for name in modules if kernel.has(f"module/{name}")]
    loaded += [f"client {name}" for name in _PEERS.get(kind, ()) if kernel.has(f"{_MEMORY_PEERS}/{name}")]
    if not loaded:
        return Attempt(
            "peer_memory", False, f"none of the kernel modules {', '.join(modules)} is loaded (modprobe one)"
        )
    if proxy != "thread":
        return Attempt("peer_memory", False, "it goes by addresses of this process: set UCCL_EP_PROXY=thread")
    return Attempt("peer_memory", True, f"{loaded[0]} is loaded")


def nvidia_dmabuf(cuda: Libcuda, address: int, num_bytes: int) -> int:
    """Descriptor of a dma-buf over whole pages of NVIDIA GPU memory; the caller closes it.

    Raises:
        UcclEpError: the driver has or gives none (its open kernel modules do).
    """
    descriptor = ctypes.c_int(-1)
    cuda.call(
        "cuMemGetHandleForAddressRange",
        ctypes.byref(descriptor),
        ctypes.c_ulonglong(address),
        ctypes.c_size_t(num_bytes),
        ctypes.c_int(_DMA_BUF_FD),
        ctypes.c_ulonglong(0),
    )
    return descriptor.value


def amd_dmabuf(hsa: Any, address: int, num_bytes: int) -> int:
    """The same for an AMD GPU, from libhsa-runtime64.

    Raises:
        UcclEpError: refused, or the memory is inside a larger allocation.
    """
    descriptor, offset = ctypes.c_int(-1), ctypes.c_uint64()
    export = getattr(hsa, "hsa_amd_portable_export_dmabuf", None)
    if export is None:
        raise UcclEpError("this ROCm has no hsa_amd_portable_export_dmabuf: version 5.6 or later does")
    pointer, size = ctypes.c_void_p(address), ctypes.c_size_t(num_bytes)
    status = int(export(pointer, size, ctypes.byref(descriptor), ctypes.byref(offset)))
    if status != 0:
        raise UcclEpError(f"hsa_amd_portable_export_dmabuf failed: status {status:#x}")
    if offset.value != 0:
        os.close(descriptor.value)
        raise UcclEpError(f"the memory begins {offset.value} bytes into its dma-buf, which NICs here cannot be told")
    return descriptor.value
