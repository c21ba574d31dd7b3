"""How NICs reach GPU memory on this machine: dma-buf or a peer-memory module, each with the evidence for it."""

from __future__ import annotations

import gzip
import os
import re
from typing import Any

from uccl_ep.errors import NotSupported, UcclEpError
from uccl_ep.fabric.registration import PEER_MODULES, Kernel, choose_registration
from uccl_ep.tools.doctor.gpu import ON_CPU
from uccl_ep.tools.doctor.host import NVIDIA, Host
from uccl_ep.tools.doctor.rdma import gpus_of
from uccl_ep.tools.doctor.record import Answer, missing, no_device, not_needed, ok, slow

_OPTIONS = ("CONFIG_DMA_SHARED_BUFFER", "CONFIG_DMABUF_MOVE_NOTIFY", "CONFIG_PCI_P2PDMA")
_SYMBOLS = ("ib_umem_dmabuf_get_pinned", "ib_umem_dmabuf_get", "ib_register_peer_memory_client")
_EXPORT = "hsa_amd_portable_export_dmabuf"
_MEND = {
    "cuda": "install NVIDIA's open kernel modules (dma-buf), or as root: modprobe nvidia_peermem (EFA: efa_nv_peermem)",
    "hip": "Linux 5.12 with ROCm 5.6 or newer (dma-buf), or as root: modprobe ib_peer_mem of ROCm's driver package",
}


class Driver:
    """Answers choose_registration's questions with what the driver has said of itself, without touching a GPU."""

    def __init__(self, refusal: str) -> None:
        self._refusal = refusal  # why there is no dma-buf; empty: the driver says that there is

    def allocate(self, num_bytes: int, shared: bool = False) -> int:
        """No memory is needed."""
        return 0

    def free(self, address: int) -> None:
        """Nothing was allocated."""

    def dmabuf(self, address: int, num_bytes: int) -> int:
        """A descriptor that stands for one; the caller closes it. Raises UcclEpError: the driver gives none."""
        if self._refusal:
            raise UcclEpError(self._refusal)
        return os.open(os.devnull, os.O_RDONLY)


def registration(host: Host) -> Answer:
    """The way that a job would take, and what speaks for it."""
    gpus = gpus_of(host)
    if host.settings.device == "cpu":
        return not_needed(f"{ON_CPU}: rows lie in host memory, which every NIC reaches")
    if not gpus:
        return no_device("no GPU: rows lie in host memory, which every NIC reaches")
    kind = "cuda" if host.gpus_of(NVIDIA) else "hip"
    kernel = Kernel(root=host.sys)
    if host.recorded and not any(kernel.has(f"module/{name}") for name in PEER_MODULES[kind]):
        return not_needed("a recorded tree does not tell whether the GPU's driver exports dma-bufs")
    evidence = "; ".join(filter(None, [_kernel_says(host), open_modules(host) if kind == "cuda" else ""]))
    needed = "dma-buf, or a peer-memory module; without one, rows cross PCIe twice, through pinned host memory"
    try:
        chosen = choose_registration(
            host.settings.gpu_memory, kind, Driver(_refusal(host, kind)), host.settings.proxy, kernel
        )
    except NotSupported as error:
        return missing(f"{error}; {evidence}", needed, f"unset UCCL_EP_GPU_MEMORY, or {_MEND[kind]}")
    shown = "; ".join(filter(None, [chosen.reason, evidence]))
    return slow(shown, needed, _MEND[kind]) if chosen.path == "host" else ok(shown, needed)


def _refusal(host: Host, kind: str) -> str:
    """Why the GPU's driver gives no dma-buf; empty: it does."""
    told = host.cuda if kind == "cuda" else host.hip
    if "error" in told:
        return f"whether the GPU's driver exports its memory as one is not known ({told['error']})"
    if kind == "cuda":
        without = [d["name"] for d in told["devices"] if not d.get("dmabuf")]
        return f"the driver exports none for {without[0]} (its attribute says so)" if without else ""
    return _amd_refusal(host)


def _amd_refusal(host: Host) -> str:
    try:
        library: Any = host.load("libhsa-runtime64.so.1")
    except OSError as error:
        return str(error)
    return "" if hasattr(library, _EXPORT) else f"this ROCm has no {_EXPORT}: version 5.6 or later does"


def _kernel_says(host: Host) -> str:
    """Options and symbols of the kernel, as far as they can be read."""
    if host.recorded:
        return ""
    config, where = kernel_config(host)
    options = [
        f"{name}={match[1] if (match := re.search(rf'^{name}=(.)', config, re.M)) else 'n'}" for name in _OPTIONS
    ]
    said = f"{', '.join(options)} ({where})" if config else "the kernel's configuration cannot be read"
    try:
        with open(f"{host.proc}/kallsyms", encoding="ascii", errors="replace") as file:
            names = {parts[2] for parts in map(str.split, file) if len(parts) > 2}
    except OSError:
        return f"{said}; its symbols neither"
    symbols = [name for name in _SYMBOLS if name in names]
    return f"{said}; symbols: {', '.join(symbols) or 'none of ' + ', '.join(_SYMBOLS)}"


def kernel_config(host: Host) -> tuple[str, str]:
    """(text, file) of the kernel's build configuration; empty where no file has it."""
    release = host.text_or(f"{host.proc}/sys/kernel/osrelease") or os.uname().release
    path = f"{host.boot}/config-{release}"
    try:
        return host.text(path), path
    except OSError:
        pass
    path = f"{host.proc}/config.gz"
    try:
        with gzip.open(path, "rt", encoding="ascii", errors="replace") as file:
            return file.read(), path
    except (OSError, EOFError):
        return "", ""


def open_modules(host: Host) -> str:
    """Which of NVIDIA's kernel modules are loaded: only the open ones export dma-bufs of every GPU."""
    try:
        text = host.text_or(f"{host.proc}/driver/nvidia/version")
    except OSError as error:
        return f"NVIDIA's kernel module cannot be asked ({error.strerror})"
    if not text:
        return ""
    return "NVIDIA's open kernel modules" if "Open Kernel Module" in text else "NVIDIA's closed kernel modules"
