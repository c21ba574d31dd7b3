"""Memory for the results of a Buffer on a CPU, used again once the caller has dropped every tensor on it.

A fresh tensor of 200 MB costs 50,000 page faults, which take longer than the rows that are copied into it. GPUs have a
caching allocator for this; torch's CPU allocator gives large pieces back to the system each time.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import weakref
from typing import Any

import torch

SMALLEST = 1 << 20
"""Bytes; smaller results come from torch, whose allocator keeps memory of that size."""
_HUGE_PAGE = 2 << 20
_SIZES_PER_DOUBLING = 8  # sizes are rounded up to these, so that a few rows more still find a block


class OutputPool:
    """Hands out tensors on blocks of anonymous memory (huge pages where the system has them).

    A block is free again when the last tensor on its storage is gone, views and what autograd keeps included. Free
    blocks are kept up to the most that was ever in use at once. Threads may share a pool.
    """

    def __init__(self) -> None:
        # Reentrant: a garbage collection inside of a locked part may drop a result, which comes back to _give_back.
        self._lock = threading.RLock()
        self._free: list[mmap.mmap] = []  # the one given back last is at the end: its pages are the warmest
        self._out: dict[int, weakref.ref[Any]] = {}  # by id of the reference itself, which must live to be called
        self._used_bytes = self._free_bytes = self._most_used_bytes = 0
        self._closed = False

    @property
    def kept_bytes(self) -> int:
        """Bytes in free blocks."""
        return self._free_bytes

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor; small ones come from torch."""
        count = 1
        for length in shape:
            count *= length
        num_bytes = count * dtype.itemsize
        if num_bytes < SMALLEST:
            return torch.empty(shape, dtype=dtype)
        block = self._take(_rounded(num_bytes))
        # Torch holds this array, not the mapping, so its end is the end of the last tensor.
        array = (ctypes.c_char * len(block)).from_buffer(block)
        self._watch(array, block)
        return torch.frombuffer(array, dtype=dtype, count=count).view(shape)

    def close(self) -> None:
        """Gives free memory back to the system, and from now on what is dropped too; idempotent."""
        with self._lock:
            self._closed = True
            self._free.clear()
            self._free_bytes = 0

    def _take(self, size: int) -> mmap.mmap:
        with self._lock:
            found = next((b for b in reversed(self._free) if len(b) == size), None)
            if found is not None:
                self._free.remove(found)
                self._free_bytes -= size
            self._used_bytes += size
            self._most_used_bytes = max(self._most_used_bytes, self._used_bytes)
            self._trim()
        return found if found is not None else _map(size)

    def _watch(self, array: Any, block: mmap.mmap) -> None:
        def gone(reference: Any) -> None:
            with self._lock:
                self._out.pop(id(reference), None)
                self._give_back(block)

        reference = weakref.ref(array, gone)
        with self._lock:
            self._out[id(reference)] = reference

    def _give_back(self, block: mmap.mmap) -> None:
        self._used_bytes -= len(block)
        if self._closed:
            return
        self._free.append(block)
        self._free_bytes += len(block)
        self._trim()

    def _trim(self) -> None:
        """Drops what was given back longest ago, as long as more is kept than was ever needed at once."""
        while self._free and self._used_bytes + self._free_bytes > self._most_used_bytes:
            self._free_bytes -= len(self._free.pop(0))


def _rounded(num_bytes: int) -> int:
    """Bytes up to the next of _SIZES_PER_DOUBLING sizes a doubling, and to whole huge pages."""
    step = max(_HUGE_PAGE, (1 << (num_bytes.bit_length() - 1)) // _SIZES_PER_DOUBLING)
    return -(-num_bytes // step) * step


def _map(size: int) -> mmap.mmap:
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None:
        try:
            block.madvise(advice)
        except OSError:  # a kernel without huge pages
            pass
    return block
