"""Memory for the results of a Buffer on a CPU, used again once the caller has dropped every tensor on it.

A fresh tensor of 200 MB costs 50,000 page faults, which take longer than the rows that are copied into it. GPUs have a
caching allocator for this; torch's CPU allocator gives large pieces back to the system each time.

Results lie in the rank's arena, a segment that the ranks of its node map too. So when a caller gives rows of a result
to combine, or rows that it has put into a tensor from `Buffer.empty`, the ranks that sum them read them where they are.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch

from uccl_ep import _native
from uccl_ep.device.address_ranges import AddressRanges

SMALLEST = 1 << 20
"""Bytes; smaller results come from torch, whose allocator keeps memory of that size."""
_HUGE_PAGE = 2 << 20
_SPARE = 8  # a block may be larger than what is asked for by one part in so many
_SIZES_PER_DOUBLING = 8  # sizes are rounded up to these, so that a few rows more still find a block


@dataclass(eq=False)
class _Block:
    memory: Any  # a writable buffer of `size` bytes
    size: int
    offset: int | None  # in the arena; None: memory of this process alone


class _Lease:
    """An array over a block's memory. Torch holds it, not the memory, so its end is the end of the last tensor."""

    pool: OutputPool
    block: _Block

    def __del__(self) -> None:
        self.pool.give_back(self.block)


@functools.cache
def _lease_of(size: int) -> Any:
    """The type of leases of `size` bytes."""
    return type("_Lease", (_Lease, ctypes.c_char * size), {})


class OutputPool:
    """Hands out tensors on blocks of the arena, or where that is full, of anonymous memory.

    A block is free again when the last tensor on its storage is gone, views and what autograd keeps included. Free
    blocks are kept up to the most that was ever in use at once, and beyond it, up to twice that, what was dropped and
    then asked for again. Threads may share a pool. A forked child sees what its parent writes into a result
    afterwards, but for pages that it has written itself, which are its own.

    Args:
        arena: where blocks are taken from, pages as they are written; None: anonymous memory only.
    """

    def __init__(self, arena: _native.Segment | None = None) -> None:
        self._lock = threading.Lock()
        self._back: deque[_Block] = deque()  # dropped, not yet in _free
        self._arena = arena
        self._ranges = AddressRanges(0 if arena is None else arena.bytes // _HUGE_PAGE * _HUGE_PAGE)
        self._free: list[_Block] = []  # the one given back last is at the end: its pages are the warmest
        self._used_bytes = self._free_bytes = self._most_used_bytes = 0
        self._dropped: set[int] = set()  # sizes that there was no room for
        self._missed_bytes = 0  # of those, what was asked for again
        self._closed = False

    @property
    def kept_bytes(self) -> int:
        """Bytes in free blocks."""
        with self._lock:
            self._settle()
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
        lease = _lease_of(block.size).from_buffer(block.memory)
        lease.pool, lease.block = self, block
        flat = torch.frombuffer(lease, dtype=dtype, count=count)
        return flat.as_strided(shape, _strides(shape))  # which low latency uses too: no more code to be fetched

    def arena_offset(self, tensor: torch.Tensor) -> int | None:
        """Where a contiguous tensor begins in the arena, in bytes; None: it is elsewhere."""
        if self._arena is None or tensor.numel() == 0:
            return None
        offset = tensor.data_ptr() - self._arena.address
        return offset if 0 <= offset < self._arena.bytes else None

    def give_back_free(self) -> None:
        """Gives free memory back to the system."""
        with self._lock:
            self._drop_all()

    def close(self) -> None:
        """Gives free memory back to the system, and from now on what is dropped too; idempotent."""
        with self._lock:
            self._closed = True
            self._drop_all()
            self._arena = None  # its memory goes with the last result in it

    def _take(self, size: int) -> _Block:
        with self._lock:
            if self._back:
                self._settle()
            found = None
            for free in reversed(self._free):
                if size <= free.size <= size + size // _SPARE and (found is None or free.size < found.size):
                    found = free
                    if free.size == size:
                        break
            if found is not None:
                self._free.remove(found)
                self._free_bytes -= found.size
            self._used_bytes += size if found is None else found.size
            if self._used_bytes > self._most_used_bytes:
                self._most_used_bytes = self._used_bytes
            if found is None:
                self._trim()
            return found if found is not None else self._make(size)

    def _make(self, size: int) -> _Block:
        if size in self._dropped:
            # Results take turns: a model drops dispatch's before combine makes its own. Without room for both, each
            # would drop the other in every round, whose pages the system then zeroes again.
            self._dropped.discard(size)
            self._missed_bytes = min(self._missed_bytes + size, self._most_used_bytes)
        if self._arena is None:
            return _Block(_map(size), size, None)
        while (offset := self._ranges.take(size)) is None:
            if not self._free:
                return _Block(_map(size), size, None)
            self._drop_oldest()
        return _Block(self._arena.numpy().data[offset : offset + size], size, offset)

    def _drop(self, block: _Block) -> None:
        """Its pages go back to the system."""
        if block.offset is None or self._arena is None:
            return
        # A system that refuses keeps the pages: the range is then used again with them.
        self._arena.give_back(block.offset, block.size)
        self._ranges.give_back(block.offset, block.size)

    def give_back(self, block: _Block) -> None:
        """The last tensor on a block is gone. A garbage collection may find so in the middle of a locked part, of this
        thread too: then the block waits for who comes next."""
        self._back.append(block)
        if self._lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self._lock.release()

    def _settle(self) -> None:
        while self._back:
            block = self._back.popleft()
            self._used_bytes -= block.size
            if self._closed:
                self._drop(block)
                continue
            self._free.append(block)
            self._free_bytes += block.size
            self._trim()

    def _trim(self) -> None:
        """Drops what was given back longest ago, as long as there is more than was ever needed at once, and than has
        been missed since."""
        while self._free and self._used_bytes + self._free_bytes > self._most_used_bytes + self._missed_bytes:
            self._drop_oldest()

    def _drop_all(self) -> None:
        self._settle()
        while self._free:
            self._drop(self._free.pop())
        self._free_bytes = 0

    def _drop_oldest(self) -> None:
        block = self._free.pop(0)
        self._dropped.add(block.size)
        self._free_bytes -= block.size
        self._drop(block)


def _strides(shape: tuple[int, ...]) -> list[int]:
    """Of a contiguous tensor."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 1, 0, -1):
        strides[i - 1] = strides[i] * shape[i]
    return strides


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
