"""Memory of a GPU over stub bindings: sizes, flags and order of the calls, what is undone, which context is current."""

from __future__ import annotations

import ctypes
import mmap
import random
import threading
from collections.abc import Iterator

import pytest
import torch

from tests.uccl_ep.gpu.stub_cuda import DriverBinding, Runtime, Stub
from tests.uccl_ep.gpu.stub_libcuda import LibcudaTable
from tests.uccl_ep.gpu.stub_machine import CONTEXT, CudaError, Machine
from uccl_ep.errors import UcclEpError
from uccl_ep.gpu import cupy_memory
from uccl_ep.gpu.cupy_memory import GRANULE_BYTES, STAGING_BYTES, CupyMemory
from uccl_ep.system.libcuda import Libcuda
from uccl_ep.system.libhip import HipDriver, HipRuntime


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    monkeypatch.setattr(cupy_memory, "_pins", {})
    yield Stub(monkeypatch)


def opened(stub: Stub, ordinal: int = 1, fabric: bool = False) -> CupyMemory:
    stub.table.fabric = fabric
    cuda = None if stub.machine.is_hip else Libcuda(stub.table)
    return CupyMemory(stub.runtime, stub.driver, ordinal, cuda)


def bytes_at(address: int, num_bytes: int) -> bytes:
    return ctypes.string_at(address, num_bytes)


def pages(num_bytes: int = 8192) -> tuple[int, mmap.mmap]:
    region = mmap.mmap(-1, num_bytes)
    return ctypes.addressof(ctypes.c_char.from_buffer(region)), region


@pytest.mark.parametrize("fabric", [False, True])
@pytest.mark.parametrize(
    ("asked", "total"), [(0, GRANULE_BYTES), (1, GRANULE_BYTES), (GRANULE_BYTES + 1, 2 * GRANULE_BYTES)]
)
def test_cupy_memory_allocates_whole_granules_of_zeros(stub: Stub, asked: int, total: int, fabric: bool) -> None:
    memory = opened(stub, fabric=fabric)
    before = set(stub.machine.memory)
    address = memory.allocate(asked)
    assert address % 4096 == 0
    assert bytes_at(address, total) == bytes(total)
    assert bool(stub.machine.named("malloc")) != fabric
    memory.free(address)
    if fabric:
        assert not stub.table.handles and not stub.table.mapped
    else:
        assert set(stub.machine.memory) == before


@pytest.mark.parametrize("fabric", [False, True])
def test_cupy_memory_is_put_away_and_brought_back(stub: Stub, fabric: bool) -> None:
    memory = opened(stub, fabric=fabric)
    before, total = set(stub.machine.memory), 2 * GRANULE_BYTES
    first = memory.allocate(total, shared=True)
    ctypes.memset(first, 7, total)
    memory.put_away(first)
    assert not stub.table.handles and (fabric or set(stub.machine.memory) == before)
    stub.machine.failing["memsetAsync"] = "cudaErrorLaunchFailure: unspecified launch failure"
    with pytest.raises(UcclEpError, match="allocating 4 MiB"):
        memory.bring_back(first, total, shared=True)
    stub.machine.failing.clear()
    assert not stub.table.handles and (fabric or set(stub.machine.memory) == before)
    again = memory.bring_back(first, total, shared=True)
    assert memory.keeps_addresses == fabric and (again == first or not fabric)
    assert bytes_at(again, total) == bytes(total) and len(memory.export(again)) == len(memory.export(again + 4096))
    if fabric:
        memory.put_away(again)  # its address is given back, too
    memory.free(again)
    assert not stub.table.handles and not stub.table.reserved and (fabric or set(stub.machine.memory) == before)


@pytest.mark.parametrize("fabric", [False, True])
def test_cupy_memory_failed_zeroing_gives_memory_back(stub: Stub, fabric: bool) -> None:
    memory = opened(stub, fabric=fabric)
    before = set(stub.machine.memory)
    stub.machine.failing["memsetAsync"] = "cudaErrorLaunchFailure: unspecified launch failure"
    with pytest.raises(UcclEpError, match=r"allocating 2 MiB.*start again"):
        memory.allocate(4096)
    assert not stub.table.handles and (fabric or set(stub.machine.memory) == before)


def test_cupy_memory_says_when_there_is_not_enough(stub: Stub) -> None:
    memory = opened(stub)
    stub.machine.failing["malloc"] = "cudaErrorMemoryAllocation: out of memory"
    with pytest.raises(UcclEpError, match=r"allocating 3 GiB on the GPU failed: there is not enough memory"):
        memory.allocate(3 << 30)


def test_cupy_memory_copies_any_size_through_the_staging(stub: Stub) -> None:
    memory, chosen = opened(stub), random.Random(5)
    address = memory.allocate(4 * STAGING_BYTES)
    for size in (0, 1, 17, STAGING_BYTES - 1, STAGING_BYTES, STAGING_BYTES + 1, 3 * STAGING_BYTES + 5):
        data, offset = chosen.randbytes(size), chosen.randrange(1000)
        memory.write(address + offset, data)
        assert memory.read(address + offset, size) == data
    streams = {call[4] for call in stub.machine.named("memcpyAsync")}
    assert len(streams) == 1 and 0 not in streams  # never on a stream of the user's
    assert max(call[2] for call in stub.machine.named("memcpyAsync")) <= STAGING_BYTES


def test_cupy_memory_copies_of_many_threads_do_not_mix(stub: Stub) -> None:
    memory = opened(stub)
    address, failures = memory.allocate(8 * 4096), []

    def work(lane: int) -> None:
        for i in range(60):
            data = bytes([lane * 31 + i % 7]) * 4096
            memory.write(address + lane * 4096, data)
            if memory.read(address + lane * 4096, 4096) != data:
                failures.append(lane)

    threads = [threading.Thread(target=work, args=(lane,)) for lane in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failures


@pytest.mark.parametrize("before", [0, CONTEXT, CONTEXT + 1, 0xDEAD])
def test_cupy_memory_leaves_the_threads_context_alone(stub: Stub, before: int) -> None:
    """GPU 1 is used; a thread that had nothing gets nothing, least of all a context on GPU 0."""
    memory = opened(stub)
    seen = []

    def work() -> None:
        stub.machine.context = before
        address = memory.allocate(1)
        memory.write(address, b"x")
        memory.free(address)
        with pytest.raises(UcclEpError):
            memory.export(12345)
        seen.append(stub.machine.context)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(20)
    assert seen == [before]
    assert stub.machine.contexts_made == {1}


def test_cupy_memory_works_while_another_thread_records(stub: Stub) -> None:
    memory = opened(stub)
    stub.machine.recording = True
    with pytest.raises(CudaError, match="capturing"):
        stub.machine.context = CONTEXT + 1
        stub.runtime.malloc(4096)
    address = memory.allocate(4096)
    memory.write(address, b"abc")
    assert memory.read(address, 3) == b"abc"
    memory.free(address)
    assert stub.machine.mode == 0


def test_cupy_memory_export_and_open_by_ipc(stub: Stub) -> None:
    memory = opened(stub)
    address = memory.allocate(3 * GRANULE_BYTES)
    for offset in (0, 4096, 3 * GRANULE_BYTES - 1):
        handle = memory.export(address + offset)
        there = memory.open(handle)
        assert there == address + (1 << 44) + offset
        memory.close(there)
        assert stub.machine.named("ipcCloseMemHandle")[-1] == (address + (1 << 44),)
    for outside in (address - 1, address + 3 * GRANULE_BYTES, 0):
        with pytest.raises(UcclEpError, match="not in memory that this driver allocated"):
            memory.export(outside)
    assert memory.can_export()
    stub.machine.failing["ipcGetMemHandle"] = "cudaErrorNotSupported: operation not supported"
    live = set(stub.machine.memory)
    assert not memory.can_export()
    assert set(stub.machine.memory) == live


def test_cupy_memory_export_and_open_by_fabric(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = opened(stub, fabric=True)
    address = memory.allocate(GRANULE_BYTES)
    handle = memory.export(address)
    memory.close(memory.open(handle))
    inside = memory.open(memory.export(address + 4096))
    assert inside - 4096 in stub.table.mapped
    memory.close(inside)
    assert not stub.machine.named("ipcOpenMemHandle")
    assert list(stub.table.mapped) == [address]
    without = opened(stub)
    with pytest.raises(UcclEpError, match="imex"):
        without.open(handle)


def test_cupy_memory_opened_by_two_ranks_of_a_process_is_closed_by_both(stub: Stub) -> None:
    """The vendor gives both the same address, and wants to be told twice."""
    memory = opened(stub)
    handle = memory.export(memory.allocate(1))
    first, second = memory.open(handle), memory.open(handle)
    assert first == second
    memory.close(first)
    memory.close(second)
    assert stub.machine.named("ipcCloseMemHandle") == [(first,), (first,)]
    with pytest.raises(KeyError):
        memory.close(first)


def test_cupy_memory_that_nics_and_peers_write_is_uncached_on_amd(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = Stub(monkeypatch, is_hip=True)
    memory = CupyMemory(HipRuntime(stub.runtime, stub.hip), HipDriver(stub.driver, stub.hip), 1, None)
    address = memory.allocate(5, shared=True)
    assert stub.machine.named("hipExtMallocWithFlags") == [(GRANULE_BYTES, 3)] and not stub.machine.named("malloc")
    assert bytes_at(address, GRANULE_BYTES) == bytes(GRANULE_BYTES)
    memory.allocate(5)  # what kernels of this GPU alone use may lie in its caches
    assert len(stub.machine.named("malloc")) == 1 == len(stub.machine.named("hipExtMallocWithFlags"))
    memory.free(address)
    assert address not in stub.machine.memory
    stub.hip.failing["hipExtMallocWithFlags"] = 2
    with pytest.raises(UcclEpError, match="allocating 2 MiB on the GPU failed"):
        memory.allocate(1, shared=True)


def test_cupy_memory_refuses_what_is_no_handle(stub: Stub) -> None:
    memory = opened(stub)
    good = memory.export(memory.allocate(1))
    chosen = random.Random(9)
    offset_beyond = good[:16] + (GRANULE_BYTES).to_bytes(8, "little") + good[24:]
    for bad in (b"", good[:-1], good + b"\0", b"x" * len(good), good[:8] + b"\7" + good[9:], offset_beyond,
                chosen.randbytes(len(good))):  # fmt: skip
        with pytest.raises(UcclEpError, match="handle of GPU memory"):
            memory.open(bad)
    assert not stub.machine.named("ipcOpenMemHandle")


def test_cupy_memory_pins_once_for_all_ranks_of_the_process(stub: Stub) -> None:
    first, second = opened(stub, 0), opened(stub, 1)
    stub.runtime.host_offset = 1 << 40
    address, region = pages()
    assert first.register(address, 8192) == address + (1 << 40) == second.register(address, 8192)
    assert stub.machine.named("hostRegister") == [(address, 8192, 3)]  # portable and mapped
    with pytest.raises(UcclEpError, match="8192 are pinned there already"):
        first.register(address, 4096)
    first.unregister(address)
    assert not stub.machine.named("hostUnregister")
    second.unregister(address)
    assert stub.machine.named("hostUnregister") == [(address,)]
    assert first.register(address, 4096) == address + (1 << 40)
    first.unregister(address)
    assert len(region) == 8192


def test_cupy_memory_pinning_refusals_say_the_limit(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = opened(stub)
    for address, size in ((4097, 4096), (4096, 0)):
        with pytest.raises(UcclEpError, match="whole pages"):
            memory.register(address, size)
    address, region = pages()
    stub.machine.failing["hostRegister"] = "cudaErrorMemoryAllocation: out of memory"
    monkeypatch.setattr(cupy_memory.resource, "getrlimit", lambda _: (8 << 20, 8 << 20))
    with pytest.raises(UcclEpError, match=r"pinning 8 KiB.*allowed: 8 MiB.*ulimit -l.*not enough memory"):
        memory.register(address, 8192)
    stub.machine.failing.clear()
    assert memory.register(address, 8192) == address + 0  # nothing was remembered of the refusal
    memory.unregister(address)
    assert len(region) == 8192


def test_cupy_memory_views_do_not_copy(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, seen = opened(stub), []

    def as_tensor(data: object, device: torch.device) -> torch.Tensor:
        seen.append((data.__cuda_array_interface__, device))  # type: ignore[attr-defined]
        return torch.empty(0)

    monkeypatch.setattr(torch, "as_tensor", as_tensor)
    memory.view(0x7000, 123)
    interface, device = seen[0]
    assert interface["data"] == (0x7000, False) and interface["shape"] == (123,) and interface["typestr"] == "|u1"
    assert interface["stream"] is None and device == torch.device("cuda", 1)


def test_cupy_memory_on_rocm_uses_device_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = Stub(monkeypatch, is_hip=True)
    memory = CupyMemory(HipRuntime(stub.runtime, stub.hip), HipDriver(stub.driver, stub.hip), 1, None)
    stub.runtime.setDevice(0)
    address = memory.allocate(1)
    memory.write(address, b"amd")
    assert memory.read(address, 3) == b"amd"
    host, _ = pages()
    assert memory.register(host, 8192) == host and stub.machine.named("hostRegister") == [(host, 8192, 3)]
    memory.unregister(host)
    assert stub.runtime.getDevice() == 0
    assert not stub.table.calls  # nothing of NVIDIA's


def test_cupy_memory_opens_no_fabric_where_there_is_none() -> None:
    machine = Machine()
    table = LibcudaTable(machine, fabric=True)
    table.failing["cuMemCreate"] = 800
    memory = CupyMemory(Runtime(machine), DriverBinding(machine), 0, Libcuda(table))
    memory.allocate(1)
    assert machine.named("malloc")


def test_cupy_memory_exports_dmabufs_of_both_vendors(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(cupy_memory, "nvidia_dmabuf", lambda *arguments: calls.append(arguments) or 41)
    memory = opened(stub)
    assert memory.dmabuf(4096, 8192) == 41 and calls == [(memory._cuda, 4096, 8192)]
    amd = opened(stub)
    monkeypatch.setattr(amd, "_cuda", None)
    monkeypatch.setattr(cupy_memory, "amd_dmabuf", lambda *arguments: calls.append(arguments) or 42)
    monkeypatch.setattr(cupy_memory.ctypes, "CDLL", lambda name: name)
    assert amd.dmabuf(4096, 8192) == 42 and calls[1] == ("libhsa-runtime64.so.1", 4096, 8192)

    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(cupy_memory.ctypes, "CDLL", missing)
    with pytest.raises(UcclEpError, match="ROCm's libhsa-runtime64.so.1 cannot be loaded: .*cannot open"):
        amd.dmabuf(4096, 8192)
