"""What all the stubs of a GPU see: threads' current contexts and capture modes, memory, every call that was made."""

from __future__ import annotations

import ctypes
import mmap
import threading
from typing import Any

CONTEXT = 0xC0000  # plus the ordinal: a primary context
RELAXED = 2


class CudaError(RuntimeError):
    """As CUDARuntimeError and CUDADriverError: a RuntimeError whose text begins with the vendor's name."""


class Machine:
    """What both bindings see: two GPUs, threads' current contexts, memory."""

    def __init__(self, is_hip: bool = False) -> None:
        self.is_hip = is_hip
        self.calls: list[tuple[Any, ...]] = []
        self.failing: dict[str, str] = {}  # function -> text of its error
        self.memory: dict[int, mmap.mmap] = {}
        self.contexts_made: set[int] = set()
        self.recording = False  # some thread records a graph
        self._thread = threading.local()

    @property
    def context(self) -> int:
        return int(getattr(self._thread, "context", 0))

    @context.setter
    def context(self, value: int) -> None:
        self._thread.context = value

    @property
    def mode(self) -> int:
        return int(getattr(self._thread, "mode", 0))

    @mode.setter
    def mode(self, value: int) -> None:
        self._thread.mode = value

    def note(self, name: str, *arguments: Any, unsafe: bool = True) -> None:
        """Every call of a binding passes here."""
        self.calls.append((name, *arguments))
        if name in self.failing:
            raise CudaError(self.failing[name])
        if not self.is_hip and self.context < CONTEXT:
            raise CudaError("CUDA_ERROR_INVALID_CONTEXT: invalid device context")
        if unsafe and self.recording and self.mode != RELAXED and not self.is_hip:
            raise CudaError("cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing")

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == name]

    def new_memory(self, num_bytes: int) -> int:
        region = mmap.mmap(-1, num_bytes)
        region.write(b"\xcd" * num_bytes)
        address = ctypes.addressof(ctypes.c_char.from_buffer(region))
        self.memory[address] = region
        return address
