"""The driver of a real GPU, NVIDIA or AMD: CuPy loads and launches kernels, torch has streams, events and tensors.

CuPy and the GPU are touched when a driver is opened, not when this module is imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import platform
import re
import threading
import weakref
from contextlib import AbstractContextManager
from typing import Any

import torch

from uccl_ep.errors import UcclEpError, refuse
from uccl_ep.gpu.cache import say_once
from uccl_ep.gpu.compiler import AMD, RuntimeCompiler, architecture, how_to_install
from uccl_ep.gpu.cupy_errors import asking, in_words
from uccl_ep.gpu.cupy_memory import CupyMemory
from uccl_ep.gpu.driver import Facts
from uccl_ep.system import libcuda, libhip, libnvml

_cuda: Any = torch.cuda  # torch leaves parts of it untyped
# The address of a GPU's current stream; private, and known to torch's own compiler and to Triton.
_raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
# CUDA's numbers of device attributes, which its runtime and driver share.
_FLUSH_OPTIONS, _WRITES_ORDERING, _HOST_PAGE_TABLES = 117, 118, 100
_PRIORITY = -1  # rows of a layer go before the layer's own matrix products, as in DeepEP


class Module:
    """Loaded code; unloaded when nobody refers to it any more."""

    def __init__(self, address: int, unload: Any) -> None:
        self.address = address
        weakref.finalize(self, unload, address).atexit = False  # the GPU may be gone by then


def _returned_to(idle: list[int], kind: Any) -> Any:
    """A kind of stream whose number goes back to `idle` when nobody refers to it any more.

    No weak reference tells that: torch 2.11 frees CUDA's streams without clearing those (its pull request 183403 is
    about that), and Python, which looks at them when it ends, then dies of a segmentation fault.
    """

    class LentStream(kind):  # type: ignore[misc]
        def __del__(self) -> None:
            idle.append(int(self.cuda_stream))

    return LentStream


class CupyDriver(CupyMemory):
    """One GPU of this process; see `Driver` for what each method promises. Open it with `open_driver`.

    Args:
        ordinal: the GPU as torch counts.

    Raises:
        UcclEpError: it cannot be used, and why.
    """

    def __init__(self, ordinal: int) -> None:
        runtime, driver, compiler = _need_gpu()
        _cuda.init()
        super().__init__(runtime, driver, ordinal, None if runtime.is_hip else libcuda.load())
        self._driver, self._compiler = driver, compiler
        self._idle_streams: list[int] = []
        self._seen = threading.local()  # the stream that a thread was last seen to have
        self._lent_stream = _returned_to(self._idle_streams, _cuda.ExternalStream)
        self.facts = self._ask(ordinal)

    def _ask(self, ordinal: int) -> Facts:
        runtime = self._runtime
        with self._here, asking(f"asking GPU {ordinal} what it is"):
            properties = runtime.getDeviceProperties(ordinal)
            identity = str(runtime.deviceGetPCIBusId(ordinal)).lower()
            maps = runtime.is_hip or runtime.deviceGetAttribute(runtime.cudaDevAttrCanMapHostMemory, ordinal) != 0
        arch = _arch(properties, self._compiler)
        domain, no_domain = self._domain(identity)
        return Facts(
            name=_text(properties["name"]),
            arch=arch,
            warp=int(properties["warpSize"]),
            num_sms=int(properties["multiProcessorCount"]),
            max_shared_bytes=int(properties.get("sharedMemPerBlockOptin", 0) or properties["sharedMemPerBlock"]),
            memory_bytes=int(properties["totalGlobalMem"]),
            identity=identity,
            can_export=self.can_export(),
            maps_host_memory=bool(maps),
            writes_ordering=self._attribute(_WRITES_ORDERING, ordinal),
            flush_options=self._attribute(_FLUSH_OPTIONS, ordinal),
            # A GPU that walks the host's page tables has such a link; Grace has it whatever its mode says.
            coherent_host=self._attribute(_HOST_PAGE_TABLES, ordinal) != 0 or platform.machine() == "aarch64",
            domain=domain,
            domain_reason=no_domain,
        )

    def _domain(self, identity: str) -> tuple[str, str]:
        """(its NVLink domain, ""), or ("", why other hosts' GPUs cannot open its memory)."""
        if self._runtime.is_hip:
            return "", "AMD's GPUs share memory on one host only"
        if self._fabric is None:
            return "", "no fabric handle can be made of its memory (NVIDIA's IMEX service makes that possible)"
        return libnvml.domain_of(identity)

    def _attribute(self, number: int, ordinal: int) -> int:
        """0 where the GPU's maker or this version of CUDA does not know it."""
        if self._runtime.is_hip:
            return 0
        with self._here, contextlib.suppress(RuntimeError):
            return int(self._runtime.deviceGetAttribute(number, ordinal))
        return 0

    # ---- code ------------------------------------------------------------------------------------------------------

    def load(self, binary: bytes) -> Module:
        with self._here, asking(f"loading kernels for {self.facts.arch} onto {self.facts.name}"):
            return Module(int(self._driver.moduleLoadData(binary)), self._unload)

    def _unload(self, address: int) -> None:
        with self._here, contextlib.suppress(RuntimeError):  # of a context that a fault has already ended
            self._driver.moduleUnload(address)

    def function(self, module: Module, name: str) -> int:
        with self._here, asking(f"finding kernel {name}"):
            function = int(self._driver.moduleGetFunction(module.address, name))
            if not self._runtime.is_hip:  # looking at an attribute is CUDA's documented way to load a kernel now
                self._driver.funcGetAttribute(self._driver.CU_FUNC_ATTRIBUTE_BINARY_VERSION, function)
            return function

    def allow_shared(self, function: int, shared_bytes: int) -> None:
        if self._runtime.is_hip:
            return  # a block may use all of the 64 KiB without asking
        attribute = self._driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        with self._here, asking(f"allowing {shared_bytes} bytes of shared memory a block"):
            self._driver.funcSetAttribute(function, attribute, shared_bytes)

    def resident_blocks(self, function: int, block: int, shared_bytes: int) -> int:
        with self._here, asking(f"asking how many blocks of {block} lanes an SM holds"):
            return int(self._driver.occupancyMaxActiveBlocksPerMultiprocessor(function, block, shared_bytes))

    def launch(self, function: int, grid: int, block: int, shared_bytes: int, stream: Any, args: bytes) -> None:
        struct = ctypes.c_char_p(args)  # the array of one pointer that the call wants; it copies what that points at
        try:
            shape = function, grid, 1, 1, block, 1, 1, shared_bytes, stream.cuda_stream, ctypes.addressof(struct), 0
            if self._here.already():
                self._driver.launchKernel(*shape)
            else:
                with self._here:
                    self._driver.launchKernel(*shape)
        except RuntimeError as error:
            what = f"{grid} blocks of {block} lanes with {shared_bytes} bytes of shared memory"
            raise in_words(f"launching {what}", error) from error

    def reach(self, other: CupyDriver) -> None:
        """Lets kernels of this GPU use memory of another GPU of this process, whose ranks exchange plain addresses."""
        mine, theirs = self.torch_device.index, other.torch_device.index
        with self._here, asking(f"letting GPU {mine} use memory of GPU {theirs}"):
            if not self._runtime.deviceCanAccessPeer(mine, theirs):
                say_once(f"GPU {mine} cannot use memory of GPU {theirs}: ranks on these two are no node in one process")
                return
            try:
                self._runtime.deviceEnablePeerAccess(theirs)
            except RuntimeError as error:
                if "AlreadyEnabled" not in str(error):  # by torch, for instance
                    raise

    # ---- streams ---------------------------------------------------------------------------------------------------

    def new_stream(self) -> Any:
        """Not one of torch's pool: that gives the same stream to two callers after 32, and kernels of two ranks that
        wait for each other on one stream would wait for ever."""
        runtime = self._runtime
        with self._here, asking("making a stream"):
            try:
                raw = self._idle_streams.pop()
            except IndexError:
                raw = int(runtime.streamCreateWithPriority(runtime.streamNonBlocking, _PRIORITY))
            # Later the next caller's, never destroyed: torch's allocator may still have to record an event on it.
            return self._lent_stream(raw, device=self.torch_device)

    def current_stream(self) -> Any:
        """The thread's last one, while that is still current: torch takes 4 us to make an object of it (on a Xeon)."""
        if _raw_stream is None:
            return _cuda.current_stream(self.torch_device)
        seen = getattr(self._seen, "stream", None)
        if seen is None or int(seen.cuda_stream) != _raw_stream(self.torch_device.index):
            seen = self._seen.stream = _cuda.current_stream(self.torch_device)
        return seen

    def here(self) -> tuple[Any, int, bool]:
        stream = self.current_stream()
        raw = int(stream.cuda_stream)
        return stream, raw, self._captures(raw)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = _cuda.stream(stream)
        return context

    def stream_key(self, stream: Any) -> int:
        return int(stream.cuda_stream)

    def record(self, stream: Any) -> Any:
        event = _cuda.Event()
        try:
            event.record(stream)
        except RuntimeError as error:
            raise in_words("recording an event", error) from error
        return event

    def wait(self, stream: Any, event: Any) -> None:
        try:
            stream.wait_event(event)
        except RuntimeError as error:
            raise in_words("making a stream wait for an event", error) from error

    def query(self, event: Any) -> bool:
        with self._at_work("looking at an event"):
            return bool(event.query())

    def synchronize(self, event: Any) -> None:
        with self._at_work("waiting for the GPU"):
            event.synchronize()

    def capturing(self, stream: Any) -> bool:
        return self._captures(int(stream.cuda_stream))

    def _captures(self, raw: int) -> bool:
        """One question to the vendor. Asking torch would make the stream current for the moment."""
        try:
            if self._here.already():
                return bool(self._runtime.streamIsCapturing(raw))
            with self._here:  # the default stream, 0, is the current GPU's
                return bool(self._runtime.streamIsCapturing(raw))
        except RuntimeError as error:
            raise in_words("looking at a stream", error) from error

    def use_on(self, tensor: torch.Tensor, stream: Any) -> None:
        tensor.record_stream(stream)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _arch(properties: dict[str, Any], compiler: RuntimeCompiler) -> str:
    """What to compile for. Raises UcclEpError: nothing that runs there can be made."""
    if compiler.is_hip:
        name = _text(properties["gcnArchName"]).split(":")[0]
        if name not in AMD:
            raise UcclEpError(f"kernels do not know AMD's {name}: they run on {', '.join(AMD)} (waves of 64 lanes)")
        return name
    arch, note = architecture(int(properties["major"]), int(properties["minor"]), compiler.known)
    if note:
        say_once(note)
    return arch


def architectures() -> list[str]:
    """What kernels are compiled for, for every visible GPU, each once. Only where `available` says yes."""
    runtime, _, compiler = _need_gpu()
    with asking("asking the GPUs what they are"):
        all_properties = [runtime.getDeviceProperties(i) for i in range(runtime.getDeviceCount())]
    return list(dict.fromkeys(_arch(properties, compiler) for properties in all_properties))


def _need_gpu() -> tuple[Any, Any, RuntimeCompiler]:
    """CuPy's runtime and driver bindings and the compiler.

    Raises:
        UcclEpError: why kernels cannot run on a GPU here, and what to install or change.
    """
    if torch.version.cuda is None and torch.version.hip is None:
        raise UcclEpError(f"this torch ({torch.__version__}) is built without CUDA and ROCm: install one that has it")
    if not _cuda.is_available():
        raise UcclEpError(
            "no device visible: torch finds no GPU (is its driver loaded, is CUDA_VISIBLE_DEVICES empty?)"
        )
    try:
        from cupy.cuda import driver, runtime
    except ImportError as error:
        raise UcclEpError(f"no CuPy ({error}): {how_to_install()}") from None
    if bool(runtime.is_hip) != (torch.version.hip is not None):
        built = "ROCm" if runtime.is_hip else "CUDA"
        raise UcclEpError(
            f"CuPy is built for {built} and torch is not: install both for the same vendor. {how_to_install()}"
        )
    with asking("CuPy's first look at the GPU"):
        runtime.getDeviceCount()
    if runtime.is_hip:
        runtime, driver = libhip.completed(runtime, driver)
    return runtime, driver, RuntimeCompiler()


def available() -> tuple[bool, str]:
    """Whether kernels can run on a GPU of this process, and if not, why not and what to do."""
    try:
        _need_gpu()
        _parse("auto")
    except UcclEpError as error:
        return False, str(error)
    return True, f"{_cuda.get_device_name()} with CuPy and torch {torch.__version__}"


def _parse(device: str | None) -> int:
    """The ordinal of a device's name; without one, torch's current device.

    Raises:
        UcclEpError: no such device, or one too old.
    """
    text = str(device if device is not None else "auto")
    match = re.fullmatch(r"(auto|cuda|hip)(?::(\d{1,3}))?", text)
    count = _cuda.device_count()
    if match is None or (match[1] == "auto" and match[2]):
        refuse("device", device, "auto, cuda, cuda:<number>, hip or hip:<number>")
    if match[1] == "hip" and torch.version.hip is None:
        refuse("device", device, "cuda, because this torch is built for NVIDIA's GPUs")
    ordinal = int(match[2]) if match[2] else _cuda.current_device()
    if ordinal >= count:
        refuse("device", device, f"cuda:0 to cuda:{count - 1}", "CUDA_VISIBLE_DEVICES decides which GPUs are seen.")
    if torch.version.hip is None and _cuda.get_device_capability(ordinal) < (8, 0):
        name = _cuda.get_device_name(ordinal)
        raise UcclEpError(f"{name} is too old: kernels need compute capability 8.0 (A100) or newer")
    return ordinal


_drivers: dict[int, CupyDriver] = {}
_drivers_lock = threading.Lock()


def open_driver(device: str | None = None) -> CupyDriver:
    """The driver of a GPU, the same object for every rank of this process that uses it.

    Args:
        device: "cuda", "cuda:1", "hip", "hip:1"; None or "auto": torch's current device.

    Raises:
        InvalidArgument: not a device, or not one of this process.
        UcclEpError: the GPU cannot be used; says why and what to do.
    """
    _need_gpu()
    ordinal = _parse(device)
    with _drivers_lock:
        if ordinal not in _drivers:
            opened = CupyDriver(ordinal)
            for other in _drivers.values():
                opened.reach(other)
                other.reach(opened)
            _drivers[ordinal] = opened
        return _drivers[ordinal]
