"""The kernels of one GPU, compiled, loaded completely and ready to launch by name; shared by all ranks of a process."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from uccl_ep import _native
from uccl_ep.errors import UcclEpError
from uccl_ep.gpu.build import Built, build, native_shared_bytes
from uccl_ep.gpu.compiler import MAX_BLOCK_LANES
from uccl_ep.gpu.driver import Driver

PLAIN_SHARED_BYTES = 48 << 10
"""Shared memory that a block may use without being allowed to, on every GPU, static and dynamic together."""

Builder = Callable[[str], Sequence[Built]]


class _Block(NamedTuple):
    """What a launch of a kernel in blocks of so many warps needs to know."""

    function: int
    lanes: int
    shared_bytes: int  # dynamic; it does not depend on the arguments' values
    argument_bytes: int


class KernelLibrary:
    """Every kernel of the native module on one GPU.

    Made completely before the first launch: a driver that loads a kernel while others run may wait for those to end,
    and ours wait for each other. Thread-safe; launches take no lock.

    Args:
        driver: the GPU.
        builder: makes the binaries for an architecture; the default compiles, or takes them from the cache.

    Raises:
        UcclEpError: no compiler, a compiler's error, or binaries that do not fit the native module.
    """

    def __init__(self, driver: Driver, builder: Builder = build) -> None:
        self.driver = driver
        self.built = tuple(builder(driver.facts.arch))
        self._sizes = dict(_native.kernel_arguments())
        self._modules: list[Any] = []  # kernels live as long as their module
        self._functions: dict[str, int] = {}
        self._blocks: dict[tuple[str, int], _Block] = {}  # by name and warps
        for one in self.built:
            module = driver.load(one.code.binary)
            self._modules.append(module)
            for name in one.program.kernels:
                self._functions[name] = driver.function(module, name)
        missing, unknown = self._sizes.keys() - self._functions.keys(), self._functions.keys() - self._sizes.keys()
        if missing or unknown:
            raise UcclEpError(
                f"the kernels' headers do not fit the native module: without a header {sorted(missing)}, without "
                f"native arguments {sorted(unknown)}. Reinstall uccl-ep so that both are of one version."
            )
        static = {usage.kernel: usage.shared_bytes for one in self.built for usage in one.code.usage}
        for name in self._functions:
            self._allow_shared(name, max(0, static.get(name, 0)))

    def launch(self, name: str, args: bytes, grid: int, warps: int, stream: Any) -> None:
        """Queues a kernel; does not wait.

        Args:
            name: a key of `_native.kernel_arguments()`.
            args: the kernel's argument struct (`_native.Launch.args`).
            grid: blocks.
            warps: warps a block, of the GPU's own width.
            stream: of the driver.

        Raises:
            UcclEpError: the launch is refused; names the kernel and its shape.
        """
        try:
            block = self._blocks[name, warps]
        except KeyError:
            block = self._checked(name, args, grid, warps)
        if grid < 1 or len(args) != block.argument_bytes:
            block = self._checked(name, args, grid, warps)  # refuses it
        self.driver.launch(block.function, grid, block.lanes, block.shared_bytes, stream, args)

    def _checked(self, name: str, args: bytes, grid: int, warps: int) -> _Block:
        lanes = warps * self.driver.facts.warp
        if grid < 1 or not 0 < lanes <= MAX_BLOCK_LANES:
            raise UcclEpError(
                f"launch of {name} with {grid} blocks of {warps} warps is refused: at least one block, and 1 to "
                f"{MAX_BLOCK_LANES // self.driver.facts.warp} warps of {self.driver.facts.warp} lanes"
            )
        shared = _native.shared_bytes(name, args, warps)
        self._blocks[name, warps] = found = _Block(self._functions[name], lanes, shared, len(args))
        return found

    def resident_blocks(self, name: str, warps: int) -> int:
        """How many blocks of a kernel the whole GPU can hold at once: what all its ranks have to share."""
        lanes = warps * self.driver.facts.warp
        shared = self.shared_bytes(name, warps)
        return self.driver.facts.num_sms * self.driver.resident_blocks(self._functions[name], lanes, shared)

    def shared_bytes(self, name: str, warps: int) -> int:
        """Dynamic shared memory of a block of `warps` warps, as of 32 lanes; 64 need no more."""
        return native_shared_bytes(name, warps)

    def _allow_shared(self, name: str, static: int) -> None:
        """Once, for the largest block: not at a launch, which may be recorded into a graph. What a compiler has laid
        out beside counts towards both limits."""
        most = self.shared_bytes(name, MAX_BLOCK_LANES // self.driver.facts.warp)
        if most + static > PLAIN_SHARED_BYTES:
            allowed = min(most, self.driver.facts.max_shared_bytes - static)
            self.driver.allow_shared(self._functions[name], allowed)


_lock = threading.Lock()
_libraries: weakref.WeakValueDictionary[int, KernelLibrary] = weakref.WeakValueDictionary()


def library(driver: Driver, builder: Builder = build) -> KernelLibrary:
    """The library of a GPU: the same for every caller while any of them keeps it; the first one's builder makes it.

    Raises:
        UcclEpError: see KernelLibrary; not remembered.
    """
    with _lock:
        found = _libraries.get(id(driver))  # a library keeps its driver, so that no other can have this id
        if found is None:
            found = _libraries[id(driver)] = KernelLibrary(driver, builder)
        return found
