"""CuPy's bindings and torch.cuda as far as our driver uses them, on host memory.

They demand what the real ones demand: the right context current on the calling thread, queued copies that happen when
the stream is waited for and not before, relaxed capture mode while another thread records.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tests.uccl_ep.gpu.stub_libcuda import LibcudaTable
from tests.uccl_ep.gpu.stub_machine import CONTEXT, CudaError, Machine


class Runtime:
    """cupy.cuda.runtime."""

    streamNonBlocking, memcpyDefault, cudaDevAttrCanMapHostMemory = 1, 4, 19

    def __init__(self, machine: Machine) -> None:
        self.machine, self.is_hip = machine, machine.is_hip
        self.queues: dict[int, list[Any]] = {}
        self.pinned: dict[int, int] = {}
        self.recorded: set[int] = set()  # streams that are being recorded
        self.ordinal = threading.local()
        self.strangers: set[tuple[int, int]] = set()  # GPUs that cannot use each other's memory
        self.attributes = {100: 0, 117: 1, 118: 100}  # as an H100 answers
        self.host_offset = 0  # of the address that kernels use
        self.properties: dict[str, Any] = {
            "name": b"Stub 9000", "major": 9, "minor": 0, "warpSize": 32, "multiProcessorCount": 132,
            "sharedMemPerBlockOptin": 232448, "sharedMemPerBlock": 49152, "totalGlobalMem": 141 << 30,
            "gcnArchName": b"gfx942:sramecc+:xnack-",
        }  # fmt: skip

    def _not_on_rocm(self) -> None:
        """What CuPy's ROCm build answers for functions that it does not bind."""
        if self.is_hip:
            raise CudaError("hipErrorUnknown")

    def setDevice(self, ordinal: int) -> None:
        self.ordinal.value = ordinal
        self.machine.context = CONTEXT + ordinal
        self.machine.contexts_made.add(ordinal)

    def getDevice(self) -> int:
        return int(getattr(self.ordinal, "value", 0))

    def getDeviceCount(self) -> int:
        if "getDeviceCount" in self.machine.failing:
            raise CudaError(self.machine.failing["getDeviceCount"])
        return 2

    def getDeviceProperties(self, ordinal: int) -> dict[str, Any]:
        return self.properties

    def deviceGetPCIBusId(self, ordinal: int) -> str:
        return f"0000:1B:0{ordinal}.0"

    def deviceCanAccessPeer(self, device: int, peer: int) -> int:
        return int((device, peer) not in self.strangers)

    def deviceEnablePeerAccess(self, peer: int) -> None:
        self.machine.note("deviceEnablePeerAccess", self.machine.context, peer)

    def deviceGetAttribute(self, attribute: int, ordinal: int) -> int:
        if attribute == self.cudaDevAttrCanMapHostMemory:
            return 1
        if attribute not in self.attributes:
            raise CudaError("cudaErrorInvalidValue: invalid argument")
        return self.attributes[attribute]

    def streamCreateWithFlags(self, flags: int) -> int:
        return self._create_stream(flags, 0)

    def streamCreateWithPriority(self, flags: int, priority: int) -> int:
        self._not_on_rocm()
        return self._create_stream(flags, priority)

    def _create_stream(self, flags: int, priority: int) -> int:
        self.machine.note("streamCreate", flags, priority)
        self.queues[0x5000 + len(self.queues)] = []
        return 0x5000 + len(self.queues) - 1

    def hostAlloc(self, num_bytes: int, flags: int) -> int:
        self.machine.note("hostAlloc", num_bytes, flags)
        return self.machine.new_memory(num_bytes)

    def malloc(self, num_bytes: int) -> int:
        self.machine.note("malloc", num_bytes)
        return self.machine.new_memory(num_bytes)

    def free(self, address: int) -> None:
        self.machine.note("free", address)
        del self.machine.memory[address]

    def streamIsCapturing(self, stream: int) -> bool:
        self._not_on_rocm()
        self.machine.note("streamIsCapturing", stream, unsafe=False)
        return stream in self.recorded

    def memsetAsync(self, address: int, value: int, num_bytes: int, stream: int) -> None:
        self.machine.note("memsetAsync", address, value, num_bytes, stream)
        self.queues[stream].append(lambda: ctypes.memset(address, value, num_bytes))

    def memcpyAsync(self, to: int, source: int, num_bytes: int, kind: int, stream: int) -> None:
        self.machine.note("memcpyAsync", to, source, num_bytes, kind, stream)
        self.queues[stream].append(lambda: ctypes.memmove(to, source, num_bytes))

    def streamSynchronize(self, stream: int) -> None:
        self.machine.note("streamSynchronize", stream)
        for work in self.queues[stream]:
            work()
        self.queues[stream].clear()

    def ipcGetMemHandle(self, address: int) -> bytes:
        self.machine.note("ipcGetMemHandle", address)
        assert address in self.machine.memory, "not the base of an allocation"
        return address.to_bytes(8, "little") + b"h" * 56

    def ipcOpenMemHandle(self, handle: bytes) -> int:
        self.machine.note("ipcOpenMemHandle", handle)
        assert len(handle) == 64
        return int.from_bytes(handle[:8], "little") + (1 << 44)  # another process sees it elsewhere

    def ipcCloseMemHandle(self, address: int) -> None:
        self.machine.note("ipcCloseMemHandle", address)

    def hostRegister(self, address: int, num_bytes: int, flags: int) -> None:
        self._not_on_rocm()
        self._register(address, num_bytes, flags)

    def _register(self, address: int, num_bytes: int, flags: int) -> None:
        self.machine.note("hostRegister", address, num_bytes, flags)
        if address in self.pinned:
            raise CudaError("cudaErrorHostMemoryAlreadyRegistered: part or all of the memory is already mapped")
        self.pinned[address] = num_bytes

    def hostUnregister(self, address: int) -> None:
        self._not_on_rocm()
        self._unregister(address)

    def _unregister(self, address: int) -> None:
        self.machine.note("hostUnregister", address)
        del self.pinned[address]

    def pointerGetAttributes(self, address: int) -> SimpleNamespace:
        self.machine.note("pointerGetAttributes", address)
        return SimpleNamespace(devicePointer=address + self.host_offset if address in self.pinned else 0)


class DriverBinding:
    """cupy.cuda.driver."""

    CU_FUNC_ATTRIBUTE_BINARY_VERSION, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 6, 8

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.functions: dict[int, str] = {}
        self.loaded: set[int] = set()  # looked at, so that launching loads nothing

    def ctxGetCurrent(self) -> int:
        if self.machine.is_hip:
            raise CudaError("hipErrorUnknown")
        return self.machine.context

    def ctxSetCurrent(self, context: int) -> None:
        self.machine.context = context

    def moduleLoadData(self, image: bytes) -> int:
        self.machine.note("moduleLoadData", image)
        return 0x700

    def moduleUnload(self, module: int) -> None:
        self.machine.note("moduleUnload", module)

    def moduleGetFunction(self, module: int, name: str) -> int:
        self.machine.note("moduleGetFunction", module, name)
        if name.startswith("no_"):
            raise CudaError("CUDA_ERROR_NOT_FOUND: named symbol not found")
        self.functions[0x800 + len(self.functions)] = name
        return 0x800 + len(self.functions) - 1

    def funcGetAttribute(self, attribute: int, function: int) -> int:
        self.machine.note("funcGetAttribute", attribute, function)
        self.loaded.add(function)
        return 90

    def funcSetAttribute(self, function: int, attribute: int, value: int) -> None:
        self.machine.note("funcSetAttribute", function, attribute, value)

    def occupancyMaxActiveBlocksPerMultiprocessor(self, function: int, block: int, shared: int) -> int:
        if self.machine.is_hip:
            raise CudaError("hipErrorUnknown")
        self.machine.note("occupancy", function, block, shared)
        return 2048 // block

    def launchKernel(self, function: int, *rest: int) -> None:
        grid, block, shared, stream = rest[:3], rest[3:6], rest[6], rest[7]
        pointer = ctypes.c_void_p.from_address(rest[8]).value
        assert pointer is not None and rest[9] == 0
        self.machine.note(
            "launchKernel", function, grid, block, shared, stream, ctypes.string_at(pointer, 24), unsafe=False
        )


class Stream:
    def __init__(self, raw: int, device: Any = None) -> None:
        self.cuda_stream, self.device = raw, device
        self.waited: list[Any] = []

    def wait_event(self, event: Any) -> None:
        self.waited.append(event)


class Event:
    def __init__(self, **options: Any) -> None:
        assert not options.get("enable_timing")
        self.stream: Any = None
        self.happened, self.error = False, ""

    def record(self, stream: Any) -> None:
        self.stream = stream

    def query(self) -> bool:
        return self.happened

    def synchronize(self) -> None:
        if self.error:
            raise CudaError(self.error)
        self.happened = True


class TorchCuda:
    """Stands in for functions of torch.cuda."""

    def __init__(self) -> None:
        self.default = Stream(0)
        self.current = threading.local()
        self.ordinal, self.visible, self.capability = 0, True, (9, 0)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in {
            "is_available": lambda: self.visible,
            "init": lambda: None,
            "current_device": lambda: self.ordinal,
            "device_count": lambda: 2,
            "get_device_name": lambda *_: "Stub 9000",
            "get_device_capability": lambda *_: self.capability,
            "current_stream": lambda *_: self.here(),
            "stream": self.stream,
            "ExternalStream": Stream,
            "Event": Event,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)

    def here(self) -> Stream:
        found: Stream = getattr(self.current, "stream", self.default)
        return found

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before = self.here()
        self.current.stream = stream
        try:
            yield
        finally:
            self.current.stream = before


class Nvrtc:
    """cupy.cuda.nvrtc of some version."""

    def getVersion(self) -> tuple[int, int]:
        return (13, 0)

    def getSupportedArchs(self) -> tuple[int, ...]:
        return (75, 80, 86, 89, 90, 100, 120)


class HipTable:
    """libamdhip64: functions that take ctypes arguments and return an error number."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.failing: dict[str, int] = {}

    def __getattribute__(self, name: str) -> Any:
        failing = object.__getattribute__(self, "failing") if name.startswith("hip") else {}
        return (lambda *_: failing[name]) if name in failing else object.__getattribute__(self, name)

    @property
    def hipGetErrorName(self) -> Any:
        def name(status: Any) -> bytes | None:
            assert name.restype is ctypes.c_char_p  # type: ignore[attr-defined]
            return {2: b"hipErrorOutOfMemory"}.get(status.value)

        return name

    def hipHostRegister(self, address: Any, num_bytes: Any, flags: Any) -> int:
        self.runtime._register(address.value, num_bytes.value, flags.value)
        return 0

    def hipHostUnregister(self, address: Any) -> int:
        self.runtime._unregister(address.value)
        return 0

    def hipStreamCreateWithPriority(self, stream: Any, flags: Any, priority: Any) -> int:
        stream._obj.value = self.runtime._create_stream(flags.value, priority.value)
        return 0

    def hipExtMallocWithFlags(self, address: Any, num_bytes: Any, flags: Any) -> int:
        self.runtime.machine.note("hipExtMallocWithFlags", num_bytes.value, flags.value)
        address._obj.value = self.runtime.machine.new_memory(num_bytes.value)
        return 0

    def hipStreamIsCapturing(self, stream: Any, status: Any) -> int:
        status._obj.value = int((stream.value or 0) in self.runtime.recorded)
        return 0

    def hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(self, blocks: Any, f: Any, block: Any, shared: Any) -> int:
        self.runtime.machine.note("occupancy", f.value, block.value, shared.value)
        blocks._obj.value = 2048 // block.value
        return 0


class Stub:
    """All of it, installed for one test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, is_hip: bool = False) -> None:
        self.machine = Machine(is_hip)
        self.runtime, self.driver = Runtime(self.machine), DriverBinding(self.machine)
        self.table = LibcudaTable(self.machine, fabric=False)
        self.hip = HipTable(self.runtime)
        self.torch = TorchCuda()
        self.torch.install(monkeypatch)
        package, cuda = ModuleType("cupy"), ModuleType("cupy.cuda")
        for name, value in {"runtime": self.runtime, "driver": self.driver, "nvrtc": Nvrtc()}.items():
            setattr(cuda, name, value)
        package.cuda = cuda  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "cupy", package)
        monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
        monkeypatch.setattr(torch.version, "cuda", None if is_hip else "13.0")
        monkeypatch.setattr(torch.version, "hip", "7.0" if is_hip else None)
