"""The pushing side of the ring benchmark: kernels on a GPU through a Driver, or the same work as host threads."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from ctypes import addressof, c_char, memmove, memset, string_at
from typing import Any, Protocol

from bench.device.ring_programs import KERNELS, ClockBenchArgs, HostLibrary, RingBenchArgs

Join = Callable[[], None]
WARPS_A_BLOCK = 4


class Side(Protocol):
    """Who pushes. Addresses that it returns are the ones its producers use."""

    name: str

    def share(self, address: int, num_bytes: int) -> int:
        """Makes host memory (page-aligned) usable by producers."""

    def unshare(self, address: int) -> None:
        """Ends a `share`."""

    def allocate(self, num_bytes: int) -> int:
        """Zeroed memory of the producers' own."""

    def free(self, address: int) -> None:
        """Ends an `allocate`."""

    def write(self, address: int, data: bytes) -> None:
        """Into memory of `allocate`, while nothing runs."""

    def read(self, address: int, num_bytes: int) -> bytes:
        """From memory of `allocate`."""

    def produce(self, args: RingBenchArgs, warps: int) -> Join:
        """Starts producers; the result waits for their end."""

    def answer(self, args: ClockBenchArgs) -> Join:
        """Starts the clock that answers; likewise."""


class HostMemory:
    """Zeroed, page-aligned host memory."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._pages = mmap.mmap(-1, self.num_bytes)
        self._view = (c_char * self.num_bytes).from_buffer(self._pages)
        self.address = addressof(self._view)

    def clear(self) -> None:
        """Zero again."""
        memset(self.address, 0, self.num_bytes)

    def peek(self, offset: int, count: int) -> bytes:
        """A copy."""
        return string_at(self.address + offset, count)

    def fill(self, offset: int, data: bytes) -> None:
        """Writes `data`."""
        memmove(self.address + offset, data, len(data))


class HostSide:
    """Producers are threads of this machine: shows the consumers' side, and that the benchmark itself is right."""

    name = "host threads"

    def __init__(self, library: HostLibrary, threads: int) -> None:
        self._library, self._threads = library, threads
        self._allocated: dict[int, HostMemory] = {}

    def share(self, address: int, num_bytes: int) -> int:
        return address

    def unshare(self, address: int) -> None:
        pass

    def allocate(self, num_bytes: int) -> int:
        memory = HostMemory(num_bytes)
        self._allocated[memory.address] = memory
        return memory.address

    def free(self, address: int) -> None:
        del self._allocated[address]

    def _at(self, address: int) -> tuple[HostMemory, int]:
        return next((m, address - a) for a, m in self._allocated.items() if a <= address < a + m.num_bytes)

    def write(self, address: int, data: bytes) -> None:
        memory, offset = self._at(address)
        memory.fill(offset, data)

    def read(self, address: int, num_bytes: int) -> bytes:
        memory, offset = self._at(address)
        return memory.peek(offset, num_bytes)

    def produce(self, args: RingBenchArgs, warps: int) -> Join:
        return self._run(lambda: self._library.produce(args, warps, self._threads))

    def answer(self, args: ClockBenchArgs) -> Join:
        return self._run(lambda: self._library.answer(args))

    @staticmethod
    def _run(work: Callable[[], None]) -> Join:
        thread = threading.Thread(target=work)
        thread.start()
        return thread.join


class GpuSide:
    """Producers are warps of a GPU; `module` holds the kernels of ring_producer.h."""

    def __init__(self, driver: Any, module: Any) -> None:
        self._driver, self._module = driver, module  # kernels live as long as their module
        self._producer, self._clock = (driver.function(module, name) for name in KERNELS)
        self._stream = driver.new_stream()
        self.name = driver.facts.name
        self.share, self.unshare = driver.register, driver.unregister
        self.allocate, self.free = driver.allocate, driver.free
        self.write, self.read = driver.write, driver.read

    def produce(self, args: RingBenchArgs, warps: int) -> Join:
        block = WARPS_A_BLOCK if warps % WARPS_A_BLOCK == 0 else 1
        return self._launch(self._producer, warps // block, block, bytes(args))

    def answer(self, args: ClockBenchArgs) -> Join:
        return self._launch(self._clock, 1, 1, bytes(args))

    def _launch(self, function: int, grid: int, warps: int, args: bytes) -> Join:
        driver = self._driver
        driver.launch(function, grid, warps * driver.facts.warp, 0, self._stream, args)
        event = driver.record(self._stream)
        return lambda: driver.synchronize(event)
