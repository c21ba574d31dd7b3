"""What CuPy's ROCm build has no binding for (pinning, occupancy, streams), from AMD's runtime by ctypes.

The results look like CuPy's own bindings with those functions filled in, so that nobody else has to know.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

from uccl_ep.errors import UcclEpError

_UNCACHED = 0x3  # hipDeviceMallocUncached
_MAPS = Path("/proc/self/maps")


class HipError(RuntimeError):
    """A call failed; the text begins with HIP's name of the error, as CuPy's errors do."""


class _Completed:
    """A binding of CuPy and AMD's runtime beside it."""

    def __init__(self, binding: Any, functions: Any) -> None:
        self._binding, self._functions = binding, functions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._binding, name)

    def _call(self, name: str, *arguments: Any) -> None:
        status = int(getattr(self._functions, name)(*arguments))
        if status != 0:
            error_name = self._functions.hipGetErrorName
            error_name.restype = ctypes.c_char_p
            text = error_name(ctypes.c_int(status)) or b"hipError"
            raise HipError(f"{text.decode()} ({status}) from {name}")


class HipRuntime(_Completed):
    """cupy.cuda.runtime with what is missing in it."""

    def hostRegister(self, address: int, num_bytes: int, flags: int) -> None:
        self._call("hipHostRegister", ctypes.c_void_p(address), ctypes.c_size_t(num_bytes), ctypes.c_uint(flags))

    def mallocUncached(self, num_bytes: int) -> int:
        """Device memory that no cache of the GPU holds back: what a NIC or another GPU writes while a kernel runs is
        seen by that kernel, and the other way round. hipMalloc's is seen at the ends of kernels only."""
        address = ctypes.c_void_p()
        size, flags = ctypes.c_size_t(num_bytes), ctypes.c_uint(_UNCACHED)
        self._call("hipExtMallocWithFlags", ctypes.byref(address), size, flags)
        return int(address.value or 0)

    def hostUnregister(self, address: int) -> None:
        self._call("hipHostUnregister", ctypes.c_void_p(address))

    def streamCreateWithPriority(self, flags: int, priority: int) -> int:
        stream = ctypes.c_void_p()
        self._call("hipStreamCreateWithPriority", ctypes.byref(stream), ctypes.c_uint(flags), ctypes.c_int(priority))
        return int(stream.value or 0)

    def streamIsCapturing(self, stream: int) -> bool:
        status = ctypes.c_int()
        self._call("hipStreamIsCapturing", ctypes.c_void_p(stream), ctypes.byref(status))
        return status.value != 0


class HipDriver(_Completed):
    """cupy.cuda.driver with what is missing in it."""

    def occupancyMaxActiveBlocksPerMultiprocessor(self, function: int, block: int, shared_bytes: int) -> int:
        blocks = ctypes.c_int()
        self._call(
            "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor",
            ctypes.byref(blocks),
            ctypes.c_void_p(function),
            ctypes.c_int(block),
            ctypes.c_size_t(shared_bytes),
        )
        return blocks.value


def loaded_runtime(maps: str | None = None) -> str:
    """The path of the HIP runtime that this process has loaded.

    Args:
        maps: text of /proc/self/maps; None: this process's.

    Raises:
        UcclEpError: none, or more than one: a stream of one is an arbitrary number to the other.
    """
    text = _MAPS.read_text(encoding="utf-8") if maps is None else maps
    found = sorted(set(re.findall(r"(/\S*/libamdhip64\S*)", text)))
    if len(found) == 1:
        return str(found[0])
    if not found:
        raise UcclEpError("no HIP runtime (libamdhip64) is loaded: is torch built for ROCm, and is ROCm installed?")
    raise UcclEpError(
        f"torch and CuPy have loaded different HIP runtimes ({', '.join(found)}), which cannot share streams: put the "
        "folder of one of them first in LD_LIBRARY_PATH, or install both for the same ROCm"
    )


def completed(runtime: Any, driver: Any) -> tuple[HipRuntime, HipDriver]:
    """CuPy's bindings with AMD's own functions beside them.

    Raises:
        UcclEpError: see `loaded_runtime`.
    """
    functions = ctypes.CDLL(loaded_runtime())
    return HipRuntime(runtime, functions), HipDriver(driver, functions)
