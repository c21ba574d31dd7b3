"""Device memory with fabric handles: openable by any process in the NVLink domain, also in another container or host.

Plain CUDA IPC needs both processes to see each other's device nodes and PIDs; fabric handles need only the fabric.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading

from uccl_ep.errors import UcclEpError
from uccl_ep.sizes import round_up
from uccl_ep.system.libcuda import Libcuda

HANDLE_BYTES = 64
_FABRIC_SUPPORTED, _RDMA_WITH_VMM_SUPPORTED = 128, 110  # CU_DEVICE_ATTRIBUTE_*
_HANDLE_TYPE_FABRIC = 8
_PINNED, _ON_DEVICE, _READ_WRITE, _GRANULARITY_RECOMMENDED = 1, 1, 3, 1


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _AllocationFlags(ctypes.Structure):
    _fields_ = [
        ("compression_type", ctypes.c_ubyte),
        ("gpu_direct_rdma_capable", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    ]


class _AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("requested_handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32_handle_metadata", ctypes.c_void_p),
        ("flags", _AllocationFlags),
    ]


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


class Fabric:
    """Fabric memory of one GPU. Thread-safe.

    Args:
        cuda: the driver library.
        ordinal: the GPU as CUDA counts.
    """

    def __init__(self, cuda: Libcuda, ordinal: int) -> None:
        self._cuda = cuda
        device = ctypes.c_int()
        cuda.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
        self._device = device.value
        self._lock = threading.Lock()
        self._mapped: dict[int, tuple[int, int]] = {}  # address -> (allocation handle, bytes)
        self._away: dict[int, int] = {}  # address that is reserved without memory -> bytes

    def supported(self) -> bool:
        """Whether a handle can really be made here: drivers say yes to the attribute where the fabric's own service
        (IMEX) does not run."""
        if not self._attribute(_FABRIC_SUPPORTED):
            return False
        try:
            address = self.allocate(1)
        except UcclEpError:
            return False
        try:
            self.export(address)
        except UcclEpError:
            return False
        finally:
            self.free(address)
        return True

    def allocate(self, num_bytes: int) -> int:
        """Address of new device memory, not zeroed, rounded up to the GPU's granularity (2 MiB).

        Raises:
            UcclEpError: refused.
        """
        handle, total = self._create(num_bytes)
        return self._map(handle, total)

    def _create(self, num_bytes: int) -> tuple[int, int]:
        """(handle of new memory, its bytes)."""
        wanted = _AllocationProperties(type=_PINNED, requested_handle_types=_HANDLE_TYPE_FABRIC)
        wanted.location = _Location(_ON_DEVICE, self._device)
        wanted.flags.gpu_direct_rdma_capable = int(self._attribute(_RDMA_WITH_VMM_SUPPORTED))
        unit = ctypes.c_size_t()
        option = ctypes.c_int(_GRANULARITY_RECOMMENDED)
        self._cuda.call("cuMemGetAllocationGranularity", ctypes.byref(unit), ctypes.byref(wanted), option)
        total, handle = round_up(num_bytes, unit.value), ctypes.c_ulonglong()
        flags = ctypes.c_ulonglong(0)
        self._cuda.call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(total), ctypes.byref(wanted), flags)
        return handle.value, total

    def free(self, address: int) -> None:
        """Ends an `allocate` or an `open`. Peers that opened the memory keep it until they close it."""
        with self._lock:
            away = self._away.pop(address, None)
        total = self._unmap(address) if away is None else away
        self._cuda.call("cuMemAddressFree", ctypes.c_ulonglong(address), ctypes.c_size_t(total))

    def put_away(self, address: int) -> None:
        """Gives the memory of an `allocate` back and keeps its address. `free` then ends that."""
        total = self._unmap(address)
        with self._lock:
            self._away[address] = total

    def _unmap(self, address: int) -> int:
        """Takes the memory away from an address; returns its bytes."""
        with self._lock:
            handle, total = self._mapped.pop(address)
        self._cuda.call("cuMemUnmap", ctypes.c_ulonglong(address), ctypes.c_size_t(total))
        self._cuda.call("cuMemRelease", ctypes.c_ulonglong(handle))
        return total

    def bring_back(self, address: int) -> int:
        """New memory, not zeroed, at an address that was put away; returns that address.

        Raises:
            UcclEpError: refused; it is still put away.
        """
        with self._lock:
            total = self._away[address]
        handle, _ = self._create(total)
        with contextlib.ExitStack() as undo:
            undo.callback(self._cuda.call, "cuMemRelease", ctypes.c_ulonglong(handle))
            self._fill(undo, handle, address, total)
        with self._lock:
            del self._away[address]
        return address

    def mapped_bytes(self, address: int) -> int:
        """Bytes behind an address of `allocate` or `open`."""
        with self._lock:
            return self._mapped[address][1]

    def export(self, address: int) -> bytes:
        """The 64-byte handle of memory of `allocate`.

        Raises:
            UcclEpError: refused.
        """
        with self._lock:
            handle, _ = self._mapped[address]
        exported = (ctypes.c_ubyte * HANDLE_BYTES)()
        kind, flags = ctypes.c_int(_HANDLE_TYPE_FABRIC), ctypes.c_ulonglong(0)
        self._cuda.call("cuMemExportToShareableHandle", exported, ctypes.c_ulonglong(handle), kind, flags)
        return bytes(exported)

    def open(self, exported: bytes, num_bytes: int) -> int:
        """Address of another process's memory.

        Args:
            exported: what `export` gave there.
            num_bytes: what `mapped_bytes` says there.

        Raises:
            UcclEpError: refused.
        """
        handle = ctypes.c_ulonglong()
        raw = (ctypes.c_ubyte * HANDLE_BYTES).from_buffer_copy(exported)
        kind = ctypes.c_int(_HANDLE_TYPE_FABRIC)
        self._cuda.call("cuMemImportFromShareableHandle", ctypes.byref(handle), raw, kind)
        return self._map(handle.value, num_bytes)

    def _attribute(self, number: int) -> bool:
        value = ctypes.c_int()
        status = self._cuda.status(
            "cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(number), ctypes.c_int(self._device)
        )
        return status == 0 and value.value != 0  # an older driver does not know the attribute

    def _map(self, handle: int, total: int) -> int:
        """Gives memory an address that this GPU reads and writes; takes the handle back where that fails."""
        size, address, zero = ctypes.c_size_t(total), ctypes.c_ulonglong(), ctypes.c_ulonglong(0)
        with contextlib.ExitStack() as undo:
            undo.callback(self._cuda.call, "cuMemRelease", ctypes.c_ulonglong(handle))
            self._cuda.call("cuMemAddressReserve", ctypes.byref(address), size, ctypes.c_size_t(0), zero, zero)
            undo.callback(self._cuda.call, "cuMemAddressFree", address, size)
            self._fill(undo, handle, address.value, total)
        return address.value

    def _fill(self, undo: contextlib.ExitStack, handle: int, reserved: int, total: int) -> None:
        """Puts memory at a reserved address, where this GPU reads and writes it; then nothing is to be undone."""
        size, address = ctypes.c_size_t(total), ctypes.c_ulonglong(reserved)
        zero = ctypes.c_ulonglong(0)
        access = _Access(_Location(_ON_DEVICE, self._device), _READ_WRITE)
        self._cuda.call("cuMemMap", address, size, ctypes.c_size_t(0), ctypes.c_ulonglong(handle), zero)
        undo.callback(self._cuda.call, "cuMemUnmap", address, size)
        self._cuda.call("cuMemSetAccess", address, size, ctypes.byref(access), ctypes.c_size_t(1))
        undo.pop_all()
        with self._lock:
            self._mapped[reserved] = (handle, total)
