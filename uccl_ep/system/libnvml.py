"""Which NVLink domain a GPU is in, by NVIDIA's management library (NVML): its fabric information.

A domain is a cluster's number and a clique in it: GPUs with both alike can open each other's memory on whatever hosts.
"""

from __future__ import annotations

import ctypes
from typing import Any

_COMPLETED = 3  # NVML_GPU_FABRIC_STATE_COMPLETED
_STATES = {0: "is not supported", 1: "has not been started", 2: "is in progress"}


class _FabricInfo(ctypes.Structure):
    """nvmlGpuFabricInfo_v2_t."""

    _fields_ = [
        ("version", ctypes.c_uint),
        ("cluster", ctypes.c_ubyte * 16),
        ("status", ctypes.c_int),
        ("clique", ctypes.c_uint),
        ("state", ctypes.c_ubyte),
        ("health", ctypes.c_uint),
    ]


class Libnvml:
    """libnvidia-ml.so.1, or a table of functions with the same names (tests)."""

    def __init__(self, functions: Any) -> None:
        self._functions = functions

    def domain_of(self, pci: str) -> tuple[str, str]:
        """(a GPU's NVLink domain, ""), or ("", why it is in none).

        Args:
            pci: its bus id.
        """
        if problem := self._call("nvmlInit_v2"):
            return "", problem
        try:
            device = ctypes.c_void_p()
            if problem := self._call("nvmlDeviceGetHandleByPciBusId_v2", pci.encode(), ctypes.byref(device)):
                return "", problem
            info = _FabricInfo(version=ctypes.sizeof(_FabricInfo) | 2 << 24)
            if problem := self._call("nvmlDeviceGetGpuFabricInfoV", device, ctypes.byref(info)):
                return "", problem
            return _read(info)
        finally:
            self._call("nvmlShutdown")

    def _call(self, name: str, *arguments: Any) -> str:
        """What went wrong; empty: nothing."""
        function = getattr(self._functions, name, None)
        if function is None:
            return f"this NVIDIA driver has no {name}"
        status = int(function(*arguments))
        return f"{name} failed with NVML error {status}" if status else ""


def _read(info: _FabricInfo) -> tuple[str, str]:
    cluster = bytes(info.cluster)
    if info.state != _COMPLETED:
        state = _STATES.get(info.state, f"is in state {info.state}")
        return "", f"NVML says that the registration with an NVLink fabric {state}"
    if info.status != 0:
        return "", f"the registration with the NVLink fabric failed with NVML error {info.status}"
    if not any(cluster):
        return "", "NVML names no cluster: the NVLink fabric ends at this host"
    return f"{cluster.hex()}/{info.clique}", ""


def domain_of(pci: str) -> tuple[str, str]:
    """The same by the library of this machine."""
    try:
        library = Libnvml(ctypes.CDLL("libnvidia-ml.so.1"))
    except OSError as error:
        return "", f"NVIDIA's management library cannot be loaded: {error}"
    return library.domain_of(pci)
