"""A CPU that behaves like a GPU, for everything above uccl_ep.gpu.driver: streams that run behind the caller's back,
memory whose kernel address is not its host address, graph capture that is as strict as CUDA's, memory that other
processes can open. Kernels are the real ones, by name, from the bytes of their arguments."""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import msgpack
import torch

from tests.uccl_ep.gpu.fake_graph import FakeGraph, Recorder, Retainer
from uccl_ep import UcclEpError, _native
from uccl_ep.gpu.driver import Facts

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mremap.restype = ctypes.c_void_p
_libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FOREVER_NS = (1 << 63) - 1


class HostExecutor:
    """Runs kernels as the host's compiler made them. `tests/gpu/ptx` has the one that runs their PTX."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    def queue(self) -> Any:
        """What a stream's work goes through, one thing after the other."""
        return _native.Stream()

    def launch(self, queue: Any, name: str, args: bytes, grid: int, warps: int) -> None:
        """Queues a kernel."""
        _native.launch(queue, name, args, grid, warps)

    def rank_begins(self) -> None:
        """The calling thread is another rank's from now on: what it queues is of that rank's GPU."""

    def context(self) -> int:
        """Which rank's GPU the calling thread is of."""
        return 77

    def flush(self, context: int) -> None:
        """What NICs have written into that rank's memory is visible."""

    def host_waited(self, event: Any) -> None:
        """The calling thread has waited for an event of a queue."""

    def memory(self, address: int, num_bytes: int, kind: str) -> None:
        """A kernel may use this memory from now on: "device", "shared" with NICs and peers, "pinned" or "tensor"; ""
        ends that."""


class FakeStream:
    """A native thread with a queue; `launched` has the names of its kernels. Nothing can refer to it weakly, since that
    breaks with CUDA's streams of torch."""

    __slots__ = ("__dict__",)

    def __init__(self, key: int, executor: HostExecutor) -> None:
        self.key = key
        self.native = executor.queue()
        self.graph: FakeGraph | None = None  # that its work is being recorded into
        self.launched: list[str] = []


class FakeEvent:
    """A point of a stream, or of a stream inside a graph."""

    def __init__(self, native: Any, graph: FakeGraph | None, number: int = -1) -> None:
        self.native, self.graph, self.number = native, graph, number


class Module:
    """Loaded code. As on a GPU, its functions are gone when nobody refers to it any more."""


class FakeDriver:
    """See uccl_ep.gpu.driver.Driver. `held()` says what has not been given back; `refusals` is what capture forbade.

    Args:
        host: that its process is on; drivers of one process may stand for several.
    """

    executor_type: type[HostExecutor] = HostExecutor  # of all drivers made from now on
    _keys = itertools.count(1)  # no two streams of a process have one key, as with a GPU's

    def __init__(self, num_sms: int = 16, identity: str = "0000:00:00.0", host: str = "", **facts: Any) -> None:
        known = {
            "name": "Fake", "arch": "sm_90a", "warp": _native.WARP, "num_sms": num_sms, "max_shared_bytes": 227 << 10,
            "memory_bytes": 1 << 30, "identity": identity, "can_export": True, "maps_host_memory": True,
        }  # fmt: skip
        self.facts = Facts(**{**known, **facts})
        self.host = host
        self.torch_device = torch.device("cpu")
        self.pin_limit = 1 << 62
        self.no_dmabuf = ""  # why it exports none
        self.keeps_addresses = False  # of memory that is put away
        self.put: dict[int, Any] = {}  # what is: its address, which nobody can use
        self.blocks_per_sm = 1
        self.library: Any = None
        self.flushes: list[tuple[int, int, int]] = []  # context, target, scope: calls of native code
        self.flush_error = 0
        self._contexts: dict[int, int] = {}  # by thread
        self._flush = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int)(self._flush_writes)
        self._set_context = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._set_current)
        self.used: list[tuple[int, int]] = []  # (address of a tensor, key of the stream it was kept for)
        self.shared: set[int] = set()  # addresses of memory for NICs and peers
        self._functions: list[tuple[str, weakref.ref[Module]]] = []
        self._kept: list[tuple[torch.Tensor, FakeStream]] = []
        self._allocated: dict[int, Any] = {}
        self._opened: dict[int, Any] = {}
        self._pinned: dict[int, tuple[int, int]] = {}  # host address: (kernels' address, bytes)
        self.executor = self.executor_type(self.facts)
        self._default = FakeStream(0, self.executor)
        self._local = threading.local()
        self._lock = threading.Lock()

    def held(self) -> dict[str, int]:
        """Memory that has not been given back, by kind."""
        return {"allocated": len(self._allocated), "opened": len(self._opened), "pinned": len(self._pinned)}

    def bytes_allocated(self) -> int:
        """Bytes of `allocate` that have not been given back or put away."""
        return sum(s.bytes for address, s in self._allocated.items() if address not in self.put)

    # ---- code ------------------------------------------------------------------------------------------------------

    def load(self, binary: Any) -> Any:
        self._forbid("loading code")
        return Module()

    def function(self, module: Any, name: str) -> int:
        self._functions.append((name, weakref.ref(module)))
        return len(self._functions) - 1

    def _loaded(self, function: int) -> str:
        name, module = self._functions[function]
        assert module() is not None, f"{name}: invalid resource handle, since its module has been unloaded"
        return name

    def allow_shared(self, function: int, shared_bytes: int) -> None:
        assert shared_bytes <= self.facts.max_shared_bytes

    def resident_blocks(self, function: int, block: int, shared_bytes: int) -> int:
        return self.blocks_per_sm

    def launch(self, function: int, grid: int, block: int, shared_bytes: int, stream: Any, args: bytes) -> None:
        name, warps = self._loaded(function), block // self.facts.warp
        assert warps * self.facts.warp == block and shared_bytes == _native.shared_bytes(name, args, warps)
        stream.launched.append(name)
        if stream.graph is not None:
            stream.graph.add_launch(stream, name, args, grid, warps)
        else:
            self.executor.launch(stream.native, name, args, grid, warps)

    # ---- memory ----------------------------------------------------------------------------------------------------

    def allocate(self, num_bytes: int, shared: bool = False) -> int:
        self._forbid("allocating memory")
        segment = _native.Segment.create("fake-gpu", num_bytes)
        with self._lock:
            self._allocated[segment.address] = segment
            if shared:
                self.shared.add(segment.address)
        self.executor.memory(segment.address, num_bytes, "shared" if shared else "device")
        return int(segment.address)

    def put_away(self, address: int) -> None:
        """What touches the address from now on ends the process, as on a GPU."""
        self._forbid("freeing memory")
        segment = self._allocated[address]
        self.executor.memory(address, segment.bytes, "")
        assert segment.give_back(0, segment.bytes) and _libc.mprotect(address, segment.bytes, 0) == 0
        with self._lock:
            self.put[address] = segment  # where addresses are not kept, so that nothing else comes to lie there
            if not self.keeps_addresses:
                del self._allocated[address]

    def bring_back(self, address: int, num_bytes: int, shared: bool = False) -> int:
        self._forbid("allocating memory")
        if not self.keeps_addresses:
            assert address in self.put
            return self.allocate(num_bytes, shared)
        segment = self.put.pop(address)
        assert segment.bytes >= num_bytes and _libc.mprotect(address, segment.bytes, 3) == 0
        self.executor.memory(address, num_bytes, "shared" if shared else "device")
        return address

    def free(self, address: int) -> None:
        self._forbid("freeing memory")
        if address in self._allocated:
            self.put.pop(address, None)
        self.executor.memory(address, self._allocated[address].bytes, "")
        del self._allocated[address]

    def view(self, address: int, num_bytes: int) -> torch.Tensor:
        return torch.frombuffer((ctypes.c_uint8 * num_bytes).from_address(address), dtype=torch.uint8)

    def export(self, address: int) -> bytes:
        segment = self._allocated[address]
        packed: bytes = msgpack.packb([self.host, self.facts.domain, os.getpid(), segment.fd, segment.bytes])
        return packed

    def dmabuf(self, address: int, num_bytes: int) -> int:
        assert num_bytes % (64 << 10) == 0, "whole pages of the host, which on Grace have 64 KiB"
        if self.no_dmabuf:
            raise UcclEpError(self.no_dmabuf)
        return os.dup(next(s.fd for base, s in self._allocated.items() if base <= address < base + s.bytes))

    def open(self, handle: bytes) -> int:
        try:
            host, domain, pid, fd, num_bytes = msgpack.unpackb(handle)
        except Exception as error:
            raise UcclEpError(f"no memory handle: {error}") from error
        assert (host, pid) != (self.host, os.getpid()), "a process opens no memory of its own"
        if host != self.host and (not domain or domain != self.facts.domain):
            raise UcclEpError(f"memory of host {host} in domain {domain!r}: this GPU is in {self.facts.domain!r}")
        segment = _native.Segment.open(pid, fd, num_bytes)
        self._opened[segment.address] = segment
        self.executor.memory(segment.address, num_bytes, "device")
        return int(segment.address)

    def close(self, address: int) -> None:
        self.executor.memory(address, self._opened[address].bytes, "")
        del self._opened[address]

    def register(self, address: int, num_bytes: int) -> int:
        """The kernels' address is a second mapping of the same pages, gone with unregister."""
        self._forbid("pinning memory")
        assert address % 4096 == 0 and address not in self._pinned
        with self._lock:
            if sum(size for _, size in self._pinned.values()) + num_bytes > self.pin_limit:
                raise UcclEpError(f"locked memory is limited to {self.pin_limit} bytes: raise it with ulimit -l")
            alias = _libc.mremap(address, 0, num_bytes, 1)  # an old size of 0 copies a shared mapping
            assert alias not in (None, ctypes.c_void_p(-1).value), os.strerror(ctypes.get_errno())
            self._pinned[address] = (alias, num_bytes)
        self.executor.memory(alias, num_bytes, "pinned")
        return int(alias)

    def unregister(self, address: int) -> None:
        self._forbid("unpinning memory")
        with self._lock:
            alias, num_bytes = self._pinned.pop(address)
        self.executor.memory(alias, num_bytes, "")
        _libc.munmap(alias, num_bytes)

    def flush_call(self) -> tuple[int, int, int]:
        flush, set_context = (
            ctypes.cast(call, ctypes.c_void_p).value or 0 for call in (self._flush, self._set_context)
        )
        return flush, set_context, self.executor.context()

    def _flush_writes(self, target: int, scope: int) -> int:
        context = self._contexts[threading.get_ident()]
        self.flushes.append((context, target, scope))
        self.executor.flush(context)
        return self.flush_error

    def _set_current(self, context: int) -> int:
        self._contexts[threading.get_ident()] = context
        return 0

    def read(self, address: int, num_bytes: int) -> bytes:
        return ctypes.string_at(address, num_bytes)

    def write(self, address: int, data: bytes) -> None:
        self._forbid("copying from the host")
        ctypes.memmove(address, data, len(data))

    # ---- streams ---------------------------------------------------------------------------------------------------

    def new_stream(self) -> FakeStream:
        return FakeStream(next(self._keys), self.executor)

    def current_stream(self) -> FakeStream:
        current: FakeStream = getattr(self._local, "stream", self._default)
        return current

    def here(self) -> tuple[FakeStream, int, bool]:
        stream = self.current_stream()
        return stream, self.stream_key(stream), self.capturing(stream)

    @contextmanager
    def on(self, stream: FakeStream) -> Iterator[None]:
        before = self.current_stream()
        self._local.stream = stream
        try:
            yield
        finally:
            self._local.stream = before

    def stream_key(self, stream: FakeStream) -> int:
        return stream.key

    def record(self, stream: FakeStream) -> FakeEvent:
        if stream.graph is not None:
            return FakeEvent(None, stream.graph, stream.graph.add_record(stream))
        return FakeEvent(stream.native.record(), None)

    def wait(self, stream: FakeStream, event: FakeEvent) -> None:
        if event.graph is not None:
            if event.graph.ended:
                raise UcclEpError("a stream waits for an event of a capture that has ended")
            event.graph.add_wait(stream, event.number)
        elif stream.graph is not None:
            raise UcclEpError("inside a capture a stream waits for an event from outside of it")
        else:
            stream.native.wait(event.native)

    def query(self, event: FakeEvent) -> bool:
        self._forbid("asking for an event")
        assert event.graph is None
        return bool(event.native.query())

    def synchronize(self, event: FakeEvent) -> None:
        self._forbid("waiting on the host")
        if event.graph is not None:
            raise UcclEpError("waiting on the host for an event inside a graph")
        event.native.wait(_FOREVER_NS)
        self.executor.host_waited(event.native)

    def capturing(self, stream: FakeStream) -> bool:
        return stream.graph is not None

    def use_on(self, tensor: torch.Tensor, stream: FakeStream) -> None:
        self.used.append((tensor.data_ptr(), stream.key))
        if stream.graph is None:
            with self._lock:
                self._kept.append((tensor, stream))

    # ---- for tests -------------------------------------------------------------------------------------------------

    def _forbid(self, what: str) -> None:
        if getattr(self._local, "graph", None) is not None:
            raise UcclEpError(f"{what} is not permitted while this thread captures a graph")

    def settle(self) -> None:
        """Waits for the thread's current stream; memory that only it has used may then be reused."""
        self.synchronize(self.record(self.current_stream()))
        with self._lock:
            idle = {s.key: s.native.record().wait(1_000_000) for _, s in self._kept}
            self._kept = [(tensor, stream) for tensor, stream in self._kept if not idle[stream.key]]
        retainer = getattr(self._local, "retainer", None)
        if retainer is not None:
            retainer.let_go()

    @contextmanager
    def rank(self, own_stream: bool = True) -> Iterator[None]:
        """A rank's thread: it has a stream of its own, and its tensors live as a GPU's allocator has them."""
        self._local.retainer = Retainer(self.executor.memory)
        self.executor.rank_begins()
        with self.on(self.new_stream() if own_stream else self._default), self._local.retainer:
            yield
            self.settle()

    @contextmanager
    def capture(self) -> Iterator[FakeGraph]:
        """What is queued meanwhile is recorded; as torch.cuda.graph, on a stream of its own."""
        self.settle()
        origin = self.new_stream()
        graph = FakeGraph(origin, self.current_stream, self.executor)
        origin.graph = self._local.graph = graph
        try:
            with self.on(origin), Recorder(graph):
                yield graph
        finally:
            self._local.graph = None
            graph.end()

    def replay(self, graph: FakeGraph) -> None:
        """Queues a graph's work behind what the current stream has."""
        graph.replay(self.current_stream())


def fake_builder(arch: str) -> list[Any]:
    """One program with every kernel, for KernelLibrary."""
    program = SimpleNamespace(kernels=tuple(_native.kernel_arguments()))
    return [SimpleNamespace(program=program, arch=arch, code=SimpleNamespace(binary=b"", usage=()), cached=True)]
