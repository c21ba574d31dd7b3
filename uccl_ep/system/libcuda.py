"""The few calls of NVIDIA's driver library that CuPy has no binding for, by ctypes. Nothing of it is needed on AMD."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

from uccl_ep.errors import UcclEpError

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


class Libcuda:
    """libcuda.so.1, or a table of functions with the same names (tests)."""

    def __init__(self, functions: Any) -> None:
        self._functions = functions

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function that returns a CUresult.

        Raises:
            UcclEpError: it is not in this driver, or it failed; names function and error.
        """
        status = self.status(name, *arguments)
        if status != 0:
            raise UcclEpError(f"{name} failed: {self._error_name(status)}")

    def status(self, name: str, *arguments: Any) -> int:
        """The CUresult of a call.

        Raises:
            UcclEpError: the driver has no such function.
        """
        function = getattr(self._functions, name, None)
        if function is None:
            raise UcclEpError(f"this NVIDIA driver has no {name}: update it")
        return int(function(*arguments))

    def address(self, name: str) -> int:
        """Where a function begins, for native code that calls it.

        Raises:
            UcclEpError: the driver has no such function.
        """
        function = getattr(self._functions, name, None)
        if function is None:
            raise UcclEpError(f"this NVIDIA driver has no {name}: update it")
        return int(ctypes.cast(function, ctypes.c_void_p).value or 0)

    def _error_name(self, status: int) -> str:
        text = ctypes.c_char_p()
        if self._functions.cuGetErrorName(ctypes.c_int(status), ctypes.byref(text)) == 0 and text.value:
            return f"{text.value.decode()} ({status})"
        return f"CUDA error {status}"

    @contextlib.contextmanager
    def beside_captures(self) -> Iterator[None]:
        """Lets the calling thread allocate, copy and ask about events while another thread records a graph, which in
        CUDA's default mode forbids that to every thread of the process. For work that no recorded stream waits for."""
        mode = ctypes.c_int(_RELAXED)
        self.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        try:
            yield
        finally:
            self.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))  # now holds what was before


def load() -> Libcuda | None:
    """The driver library of this machine; None where there is none."""
    try:
        return Libcuda(ctypes.CDLL("libcuda.so.1"))
    except OSError:
        return None
