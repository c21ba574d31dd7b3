"""Memory of one GPU through CuPy's runtime binding: device memory, other processes' memory, pinned host memory, copies.

The half of the driver (`cupy_driver.py`) that knows no kernel and no stream of the user's.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import resource
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from uccl_ep.errors import UcclEpError
from uccl_ep.fabric.registration import amd_dmabuf, nvidia_dmabuf
from uccl_ep.gpu.cupy_errors import asking, in_words
from uccl_ep.gpu.fabric import HANDLE_BYTES, Fabric
from uccl_ep.sizes import format_bytes, round_up
from uccl_ep.system.libcuda import Libcuda

GRANULE_BYTES = (
    2 << 20
)  # cudaMalloc's own unit: a smaller allocation may share one, and IPC would hand out the neighbours
STAGING_BYTES = 1 << 20
_PORTABLE_MAPPED = 0x01 | 0x02  # cudaHostRegister and cudaHostAlloc: for every GPU of the process, mapped for kernels
_HANDLE = struct.Struct("<8sBxxxxxxxQQ64s")  # magic, kind, offset into the allocation, the allocation's bytes, handle
_MAGIC = b"UCCLMEM1"
_IPC, _FABRIC = 1, 2


class Here:
    """Makes one GPU the calling thread's for a while, then puts back what was there.

    On NVIDIA by its primary context: asking for the device number instead would create a context on GPU 0 in every
    process that has never used it.
    """

    def __init__(self, runtime: Any, driver: Any, ordinal: int) -> None:
        self._runtime, self._driver, self._ordinal = runtime, driver, ordinal
        self._is_hip = bool(runtime.is_hip)
        before = 0 if self._is_hip else driver.ctxGetCurrent()
        self._own = ordinal
        if not self._is_hip:
            runtime.setDevice(ordinal)
            self._own = driver.ctxGetCurrent()
            if before not in (0, self._own):
                driver.ctxSetCurrent(before)
        self._before = threading.local()

    @property
    def context(self) -> int:
        """The GPU's context (NVIDIA), or its number (AMD)."""
        return int(self._own)

    def __enter__(self) -> None:
        before = self._get()
        if before != self._own:
            self._set(self._own)
        if not hasattr(self._before, "stack"):
            self._before.stack = []
        self._before.stack.append(before)

    def __exit__(self, *_: object) -> None:
        before = self._before.stack.pop()
        if before != self._own:
            self._set(before)

    def already(self) -> bool:
        """Whether the GPU is the calling thread's, so that nothing has to be put back."""
        return self._get() == self._own

    def _get(self) -> int:
        return int(self._runtime.getDevice() if self._is_hip else self._driver.ctxGetCurrent())

    def _set(self, which: int) -> None:
        if self._is_hip:
            self._runtime.setDevice(which)
        else:
            self._driver.ctxSetCurrent(which)  # 0: none, as in a new thread


@dataclass
class _Pin:
    num_bytes: int
    users: int


_pins: dict[int, _Pin] = {}  # pinning is the process's, whichever GPU asked
_pins_lock = threading.Lock()


class _Span:
    """Memory that torch can look at without owning it."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,), "typestr": "|u1", "data": (address, False), "version": 3, "stream": None,
        }  # fmt: skip


class CupyMemory:
    """See `Driver` for what each method promises.

    Args:
        runtime, driver: CuPy's bindings.
        ordinal: the GPU as the process counts.
        cuda: NVIDIA's driver library for what CuPy lacks; None on AMD.
    """

    def __init__(self, runtime: Any, driver: Any, ordinal: int, cuda: Libcuda | None) -> None:
        self._runtime, self._cuda = runtime, cuda
        self._here = Here(runtime, driver, ordinal)
        self.torch_device = torch.device("cuda", ordinal)
        self._lock = threading.Lock()
        self._owned: dict[int, int] = {}  # of `allocate`: address -> bytes
        # address -> (kind, address that the vendor gave, opens): the vendor gives two threads of a process the same
        # address for the same handle, and counts too.
        self._opened: dict[int, tuple[int, int, int]] = {}
        self._copy_lock = threading.Lock()  # of the two below
        with self._here, asking("setting up copies to and from the GPU"):
            self._copies = runtime.streamCreateWithFlags(runtime.streamNonBlocking)
            self._staging = runtime.hostAlloc(STAGING_BYTES, _PORTABLE_MAPPED)
        self._fabric = self._open_fabric(ordinal)
        self.keeps_addresses = self._fabric is not None

    def _open_fabric(self, ordinal: int) -> Fabric | None:
        if self._cuda is None:
            return None
        with self._here, contextlib.suppress(UcclEpError):
            fabric = Fabric(self._cuda, ordinal)
            return fabric if fabric.supported() else None
        return None

    def flush_call(self) -> tuple[int, int, int]:
        if self._cuda is None:
            raise UcclEpError("this GPU's driver flushes nothing: it is not NVIDIA's")
        calls = [self._cuda.address(name) for name in ("cuFlushGPUDirectRDMAWrites", "cuCtxSetCurrent")]
        return calls[0], calls[1], self._here.context

    @contextlib.contextmanager
    def _at_work(self, asked: str) -> Iterator[None]:
        """This GPU, beside whatever graph another thread records, with errors in words."""
        with self._here, asking(asked):
            if self._cuda is None:
                yield
            else:
                with self._cuda.beside_captures():
                    yield

    def can_export(self) -> bool:
        """Tries: some containers and systems allow no IPC."""
        try:
            address = self.allocate(1, shared=True)
            try:
                self.export(address)
            finally:
                self.free(address)
        except UcclEpError:
            return False
        return True

    def allocate(self, num_bytes: int, shared: bool = False) -> int:
        return self._allocate(num_bytes, shared)

    def _allocate(self, num_bytes: int, shared: bool, at: int | None = None) -> int:
        """`at`: an address of the fabric's memory that was put away."""
        total = round_up(max(num_bytes, 1), GRANULE_BYTES)
        with self._at_work(f"allocating {format_bytes(total)} on the GPU"):
            if self._fabric is not None:
                address = self._fabric.allocate(total) if at is None else self._fabric.bring_back(at)
            elif shared and self._runtime.is_hip:
                address = int(self._runtime.mallocUncached(total))
            else:
                address = int(self._runtime.malloc(total))
            with self._lock:
                self._owned[address] = total
            try:
                self._runtime.memsetAsync(address, 0, total, self._copies)
                self._runtime.streamSynchronize(self._copies)
            except BaseException:
                if at is None:
                    self._release(address)
                else:
                    self._put_away(address)
                raise
        return address

    def free(self, address: int) -> None:
        with self._at_work("giving memory back to the GPU"):
            self._release(address)

    def put_away(self, address: int) -> None:
        with self._at_work("giving memory back to the GPU for a while"):
            self._put_away(address)

    def _put_away(self, address: int) -> None:
        if self._fabric is None:
            self._release(address)
            return
        with self._lock:
            del self._owned[address]
        self._fabric.put_away(address)

    def bring_back(self, address: int, num_bytes: int, shared: bool = False) -> int:
        return self._allocate(num_bytes, shared, address if self._fabric is not None else None)

    def _release(self, address: int) -> None:
        with self._lock:
            if self._owned.pop(address, None) is None and self._fabric is None:
                raise KeyError(address)
        if self._fabric is not None:
            self._fabric.free(address)
        else:
            self._runtime.free(address)

    def view(self, address: int, num_bytes: int) -> torch.Tensor:
        if num_bytes == 0:
            return torch.empty(0, dtype=torch.uint8, device=self.torch_device)
        with asking(f"viewing {num_bytes} bytes at {address:#x} as a tensor"):
            return torch.as_tensor(_Span(address, num_bytes), device=self.torch_device)

    def export(self, address: int) -> bytes:
        with self._at_work("exporting GPU memory to other processes"):
            with self._lock:
                base = next((b for b, total in self._owned.items() if b <= address < b + total), None)
                total = self._owned[base] if base is not None else 0
            if base is None:
                raise UcclEpError(f"{address:#x} is not in memory that this driver allocated: it cannot be exported")
            if self._fabric is not None:
                kind, handle, total = _FABRIC, self._fabric.export(base), self._fabric.mapped_bytes(base)
            else:
                kind, handle = _IPC, bytes(self._runtime.ipcGetMemHandle(base))
            return _HANDLE.pack(_MAGIC, kind, address - base, total, handle)

    def dmabuf(self, address: int, num_bytes: int) -> int:
        with self._at_work("exporting GPU memory as a dma-buf"):
            if self._cuda is not None:
                return nvidia_dmabuf(self._cuda, address, num_bytes)
            try:
                return amd_dmabuf(ctypes.CDLL("libhsa-runtime64.so.1"), address, num_bytes)
            except OSError as error:
                raise UcclEpError(f"ROCm's libhsa-runtime64.so.1 cannot be loaded: {error}") from error

    def open(self, handle: bytes) -> int:
        if len(handle) != _HANDLE.size or handle[:8] != _MAGIC:
            raise UcclEpError(f"{len(handle)} bytes are no handle of GPU memory: all ranks need the same uccl-ep")
        _, kind, offset, total, exported = _HANDLE.unpack(handle)
        if kind not in (_IPC, _FABRIC) or offset >= total:
            raise UcclEpError("a handle of GPU memory has impossible contents: all ranks need the same uccl-ep")
        with self._at_work("opening GPU memory of another process"):
            if kind == _IPC:
                base = int(self._runtime.ipcOpenMemHandle(exported))
            elif self._fabric is not None:
                base = self._fabric.open(exported[:HANDLE_BYTES], total)
            else:
                raise UcclEpError(
                    "another process exported its memory over the NVLink fabric, which this GPU's process cannot use: "
                    "give both containers the same /dev/nvidia-caps-imex-channels"
                )
        with self._lock:
            opens = self._opened[base + offset][2] if base + offset in self._opened else 0
            self._opened[base + offset] = (kind, base, opens + 1)
        return int(base + offset)

    def close(self, address: int) -> None:
        with self._lock:
            kind, base, opens = self._opened.pop(address)
            if opens > 1:
                self._opened[address] = (kind, base, opens - 1)
        with self._at_work("closing GPU memory of another process"):
            if kind == _IPC:
                self._runtime.ipcCloseMemHandle(base)
            elif self._fabric is not None:
                self._fabric.free(base)

    def register(self, address: int, num_bytes: int) -> int:
        if address % mmap.PAGESIZE or num_bytes < 1:
            raise UcclEpError(
                f"pinning {num_bytes} bytes at {address:#x} is refused: whole pages of {mmap.PAGESIZE} bytes"
            )
        with _pins_lock, self._at_work(f"asking where the GPU sees host memory at {address:#x}"):
            pin = _pins.get(address)
            if pin is not None and pin.num_bytes != num_bytes:
                raise UcclEpError(
                    f"pinning {num_bytes} bytes at {address:#x} is refused: {pin.num_bytes} are pinned there already"
                )
            if pin is None:
                self._pin(address, num_bytes)
                pin = _pins[address] = _Pin(num_bytes, 0)
            pin.users += 1
            return int(self._runtime.pointerGetAttributes(address).devicePointer) or address

    def _pin(self, address: int, num_bytes: int) -> None:
        try:
            self._runtime.hostRegister(address, num_bytes, _PORTABLE_MAPPED)
        except RuntimeError as error:
            limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
            allowed = "unlimited" if limit == resource.RLIM_INFINITY else format_bytes(limit)
            raise in_words(
                f"pinning {format_bytes(num_bytes)} of host memory (locked memory allowed: {allowed}; raise it with "
                "`ulimit -l unlimited`, docker: --ulimit memlock=-1; a container's memory limit counts too)",
                error,
            ) from error

    def unregister(self, address: int) -> None:
        with _pins_lock:
            pin = _pins[address]
            pin.users -= 1
            if pin.users > 0:
                return
            del _pins[address]
            with self._at_work("unpinning host memory"):
                self._runtime.hostUnregister(address)

    def read(self, address: int, num_bytes: int) -> bytes:
        parts = []
        with self._copy_lock, self._at_work(f"reading {num_bytes} bytes of GPU memory at {address:#x}"):
            for begin in range(0, num_bytes, STAGING_BYTES):
                size = min(STAGING_BYTES, num_bytes - begin)
                self._copy(self._staging, address + begin, size)
                parts.append(ctypes.string_at(self._staging, size))
        return b"".join(parts)

    def write(self, address: int, data: bytes) -> None:
        with self._copy_lock, self._at_work(f"writing {len(data)} bytes of GPU memory at {address:#x}"):
            for begin in range(0, len(data), STAGING_BYTES):
                part = data[begin : begin + STAGING_BYTES]
                ctypes.memmove(self._staging, part, len(part))
                self._copy(address + begin, self._staging, len(part))

    def _copy(self, to: int, source: int, num_bytes: int) -> None:
        """On a stream of its own: nothing that the user has queued is waited for."""
        self._runtime.memcpyAsync(to, source, num_bytes, self._runtime.memcpyDefault, self._copies)
        self._runtime.streamSynchronize(self._copies)
