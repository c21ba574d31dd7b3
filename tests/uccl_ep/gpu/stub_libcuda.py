"""NVIDIA's driver library as far as our driver uses it: checks its arguments, keeps book of what is mapped."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from tests.uccl_ep.gpu.stub_machine import Machine


class LibcudaTable:
    """Functions of libcuda.so.1 that take ctypes arguments and return a CUresult."""

    NO_FABRIC, NO_PERMISSION = 801, 800

    def __init__(self, machine: Machine, fabric: bool = True) -> None:
        self.machine, self.fabric = machine, fabric
        self.failing: dict[str, int] = {}  # function -> its CUresult
        self.calls: list[str] = []
        self.handles: dict[int, int] = {}  # allocation handle -> bytes
        self.reserved: dict[int, int] = {}  # address -> bytes
        self.mapped: dict[int, int] = {}  # address -> handle
        self.writable: set[int] = set()
        self.properties: bytes = b""
        self.flushes: list[tuple[int, int, int]] = []  # context, target, scope
        self._current = threading.local()
        # Native code calls these two by address.
        self.cuCtxSetCurrent = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._set_current)
        self.cuFlushGPUDirectRDMAWrites = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int)(self._flush)

    def _set_current(self, context: int) -> int:
        self._current.context = context
        return 0

    def _flush(self, target: int, scope: int) -> int:
        self.flushes.append((getattr(self._current, "context", 0), target, scope))
        return 0

    def __getattribute__(self, name: str) -> Any:
        attribute = object.__getattribute__(self, name)
        if name.startswith("cu"):
            self.calls.append(name)
            if name in self.failing:
                return lambda *_: self.failing[name]
        return attribute

    def cuGetErrorName(self, status: Any, text: Any) -> int:
        text._obj.value = {800: b"CUDA_ERROR_NOT_PERMITTED", 801: b"CUDA_ERROR_NOT_SUPPORTED"}.get(status.value, b"")
        return 0 if text._obj.value else 1

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:
        mode._obj.value, self.machine.mode = self.machine.mode, mode._obj.value
        return 0

    def cuDeviceGet(self, device: Any, ordinal: Any) -> int:
        device._obj.value = 10 + ordinal.value
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: Any, device: Any) -> int:
        assert device.value >= 10
        value._obj.value = int(attribute.value == 110 or (attribute.value == 128 and self.fabric))
        return 0

    def cuMemGetAllocationGranularity(self, unit: Any, wanted: Any, option: Any) -> int:
        unit._obj.value = 2 << 20
        return 0

    def cuMemCreate(self, handle: Any, size: Any, wanted: Any, flags: Any) -> int:
        assert size.value % (2 << 20) == 0 and flags.value == 0
        self.properties = ctypes.string_at(ctypes.addressof(wanted._obj), ctypes.sizeof(wanted._obj))
        handle._obj.value = 1000 + len(self.calls)
        self.handles[handle._obj.value] = size.value
        return 0

    def cuMemRelease(self, handle: Any) -> int:
        del self.handles[handle.value]
        return 0

    def cuMemAddressReserve(self, address: Any, size: Any, alignment: Any, at: Any, flags: Any) -> int:
        address._obj.value = self.machine.new_memory(size.value)
        self.reserved[address._obj.value] = size.value
        return 0

    def cuMemAddressFree(self, address: Any, size: Any) -> int:
        assert self.reserved.pop(address.value) == size.value and address.value not in self.mapped
        return 0

    def cuMemMap(self, address: Any, size: Any, offset: Any, handle: Any, flags: Any) -> int:
        assert self.reserved[address.value] == size.value == self.handles[handle.value] and offset.value == 0
        self.mapped[address.value] = handle.value
        return 0

    def cuMemUnmap(self, address: Any, size: Any) -> int:
        del self.mapped[address.value]
        self.writable.discard(address.value)
        return 0

    def cuMemSetAccess(self, address: Any, size: Any, access: Any, count: Any) -> int:
        location, flags = access._obj.location, access._obj.flags
        assert (location.type, flags, count.value) == (1, 3, 1) and location.id >= 10
        self.writable.add(address.value)
        return 0

    def cuMemExportToShareableHandle(self, out: Any, handle: Any, kind: Any, flags: Any) -> int:
        assert kind.value == 8 and len(out) == 64
        ctypes.memmove(out, handle.value.to_bytes(8, "little") + b"f" * 56, 64)
        return 0

    def cuMemImportFromShareableHandle(self, handle: Any, exported: Any, kind: Any) -> int:
        assert kind.value == 8 and bytes(exported)[8:] == b"f" * 56
        origin = int.from_bytes(bytes(exported)[:8], "little")
        if origin not in self.handles:
            return self.NO_PERMISSION
        handle._obj.value = 2000 + len(self.calls)
        self.handles[handle._obj.value] = self.handles[origin]
        return 0
