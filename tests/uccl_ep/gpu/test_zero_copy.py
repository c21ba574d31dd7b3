"""Zero-copy rows between nodes lie in the GPU's memory where the other rows do, and NICs send them from there."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.uccl_ep.gpu.fake_driver import FakeDriver
from tests.uccl_ep.gpu.test_memory import NOTHING, on_device
from tests.uccl_ep.gpu.worlds import install, run_gpu_ranks
from tests.uccl_ep.ranks import case, expert_rows, low_latency, reference_of, same
from uccl_ep import NotSupported, ThreadGroup, TransportError, reference
from uccl_ep.fabric.choice import FabricChoice
from uccl_ep.gpu.dmabufs import EXPORTED_BYTES
from uccl_ep.layout import arrangement
from uccl_ep.session import session
from uccl_ep.session.proxy_link import ProxyConfig, ThreadProxy

_libc = ctypes.CDLL(None, use_errno=True)
for name in ("mmap", "mremap"):
    getattr(_libc, name).restype = ctypes.c_void_p
_NOWHERE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
_FIXED, _MOVE_FIXED = 0x10, 0x1 | 0x2  # MAP_FIXED; MREMAP_MAYMOVE | MREMAP_FIXED


class Nic(ThreadProxy):
    """Stands for a proxy whose NICs reach the GPU's memory: tcp reads what is mapped at the late span's addresses, and
    nothing is there until it is admitted. A dma-buf of the fake GPU can be mapped, and its addresses mapped again."""

    admitted: list[tuple[int, int, bool]]  # rank, bytes, by a dma-buf
    refuses: Callable[[int], bool]  # whether the next admission of a rank

    def __init__(self, config: ProxyConfig) -> None:
        self.rank, self.end = config.rank, 0
        offset, num_bytes, fd = config.spans[config.late_span]
        assert config.late_span >= 0 and fd == -1
        self.names = _libc.mmap(None, ctypes.c_size_t(num_bytes), 0, _NOWHERE, -1, ctypes.c_long(0))
        self.num_bytes = num_bytes
        super().__init__(replace(config, devices=[*config.devices, (offset, self.names, [])]))

    def admit(self, num_bytes: int, address: int, dmabufs: Any) -> None:
        assert address and self.end < num_bytes <= self.num_bytes
        if Nic.refuses(self.rank):
            raise TransportError("a NIC has no room")
        at, size = ctypes.c_void_p(self.names + self.end), ctypes.c_size_t(num_bytes - self.end)
        if dmabufs:
            (fd,) = dmabufs
            mapped = _libc.mmap(at, size, mmap.PROT_READ, mmap.MAP_SHARED | _FIXED, fd, ctypes.c_long(0))
        else:
            mapped = _libc.mremap(ctypes.c_void_p(address), ctypes.c_size_t(0), size, _MOVE_FIXED, at)
        assert mapped == at.value, os.strerror(ctypes.get_errno())
        self.end = num_bytes
        Nic.admitted.append((self.rank, num_bytes, bool(dmabufs)))

    def stop(self, drain_s: float) -> None:
        super().stop(drain_s)
        _libc.munmap(ctypes.c_void_p(self.names), ctypes.c_size_t(self.num_bytes))
        self.names, self.num_bytes = 0, 0


@pytest.fixture
def driver(variables: Any, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    variables(RANKS_PER_NODE=2, TRANSPORT="tcp", TIMEOUT_S=30)
    monkeypatch.setattr(session, "ThreadProxy", Nic)
    monkeypatch.setattr(arrangement, "choose_placement", on_device(frozenset([0]), "nic_read"))
    for answer in ("registers_late", "pins_memory"):
        monkeypatch.setattr(FabricChoice, answer, True)
    Nic.admitted, Nic.refuses = [], lambda rank: False
    return install(monkeypatch, FakeDriver(num_sms=16))


def lies_in(driver: FakeDriver, address: int) -> int:
    """Where the GPU's memory for NICs begins that holds an address."""
    return next(b for b in driver.shared if b in driver._allocated and b <= address < b + driver._allocated[b].bytes)


@pytest.mark.mostly_slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("ranks, per_node", [(2, 1), (3, 2), (4, 2)])
def test_gpu_zero_copy_between_nodes(driver: FakeDriver, variables: Any, ranks: int, per_node: int) -> None:
    """Rounds of sizes that grow and shrink, a masked rank in two of them; every row is the reference's."""
    variables(RANKS_PER_NODE=per_node, TRANSPORT="tcp", TIMEOUT_S=30)
    sizes = [(128, 4), (128, 4), (4096, 32), (128, 4), (4096, 32), (4096, 32), (4096, 32)]
    cases = [case(700 + n, "uniform", num_ranks=ranks, num_experts=2 * ranks, hidden=h, max_tokens=m)
             for n, (h, m) in enumerate(sizes)]  # fmt: skip
    lost = ranks - 1
    masks = [[{lost} if n in (3, 4) and r != lost else set() for r in range(ranks)] for n in range(len(cases))]
    rows = [[expert_rows(r, c.shape, 1.0 + n) for r in range(ranks)] for n, c in enumerate(cases)]
    wanted = [
        reference.low_latency_combine(r, c.topk_idx, c.topk_weights, reference_of(c, masked=masked), masked)
        for r, c, masked in zip(rows, cases, masks, strict=True)
    ]
    descriptors = len(os.listdir("/proc/self/fd"))

    def body(group: ThreadGroup) -> list[int]:
        rank, places = group.rank(), []
        with low_latency(group, cases[2].shape, enable_shrink=True) as buffer:
            for n, c in enumerate(cases):
                if masks[n] != masks[n - 1] and n > 0:
                    group.barrier()
                    if rank != lost:
                        buffer.low_latency_update_mask_buffer(lost, n == 3)
                    group.barrier()
                if masks[n][0] and rank == lost:
                    continue
                m, experts = c.shape.max_tokens, c.shape.num_experts
                got = buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], m, experts, use_fp8=False)
                mine = buffer.get_next_low_latency_combine_buffer(got[2])
                driver.settle()  # what a GEMM would have written on the caller's stream
                mine.copy_(rows[n][rank])
                places.append(lies_in(driver, mine.data_ptr()))
                ids, weights = c.topk_idx[rank], c.topk_weights[rank]
                out, _, _ = buffer.low_latency_combine(mine, ids, weights, got[2], zero_copy=True)
                driver.settle()
                assert same(out, wanted[n][rank]), (n, rank)
            held = buffer._session.regions.held()["zero-copy rows"]
            assert held == sum(driver._allocated[b].bytes for b in set(places))
            assert [size for size, _ in driver._pinned.values()].count(EXPORTED_BYTES) == 0
            group.barrier()
        return places

    for rank, places in enumerate(run_gpu_ranks(driver, ranks, body)):
        assert len(set(places)) == 2 and places[0] == places[1], "more were taken when more were asked for"
        grown = places[2:] if rank != lost else places[2:3]
        assert set(grown) == {grown[0]} != {places[0]}
        told = [(size, by_dmabuf) for r, size, by_dmabuf in Nic.admitted if r == rank]
        assert [by_dmabuf for _, by_dmabuf in told] == [rank != 0] * 2  # one of them by its address
        assert told[0][0] == EXPORTED_BYTES and told[1][0] > 2 * EXPORTED_BYTES
    assert driver.held() == NOTHING and len(os.listdir("/proc/self/fd")) <= descriptors


def test_gpu_zero_copy_that_a_nic_refuses_takes_nothing(driver: FakeDriver) -> None:
    """The rows are given back; whoever asks again, for more, gets them at the beginning of the span."""

    def body(group: ThreadGroup) -> None:
        with low_latency(group, case(1, num_ranks=3, num_experts=3, hidden=128).shape) as buffer:
            asked, plan = buffer._session.zero_copy, buffer._session.plan
            group.barrier()
            before = driver.bytes_allocated()
            group.barrier()
            Nic.refuses = lambda r: True
            with pytest.raises(TransportError, match="no room"):
                asked(1000)
            group.barrier()
            assert driver.bytes_allocated() == before
            assert buffer._session.regions.held()["zero-copy rows"] == 0
            group.barrier()
            Nic.refuses = lambda r: False
            with driver.capture(), pytest.raises(NotSupported, match="before the capture"):
                asked(EXPORTED_BYTES + 1)
            driver.settle()
            rows, offset = asked(EXPORTED_BYTES + 1)
            assert (rows.numel(), offset) == (2 * EXPORTED_BYTES, plan.zero_copy_offset)
            more, offset = asked(2 * EXPORTED_BYTES + 1)
            assert (more.numel(), offset) == (3 * EXPORTED_BYTES, plan.zero_copy_offset + 2 * EXPORTED_BYTES)
            room = plan.zero_copy_bytes - 5 * EXPORTED_BYTES
            assert asked(room + 1)[0].data_ptr() == more.data_ptr()  # the caller refuses it
            group.barrier()

    run_gpu_ranks(driver, 3, body)
    assert sorted(Nic.admitted) == sorted(
        (rank, units * EXPORTED_BYTES, rank != 0) for rank in range(3) for units in (2, 5)
    )
    assert driver.held() == NOTHING


@pytest.mark.parametrize("late", [True, False])
def test_gpu_zero_copy_is_in_the_bill(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """Where NICs register all memory at the start, they stay in the host's: nobody may ever ask for them."""
    monkeypatch.setattr(FabricChoice, "registers_late", late)
    monkeypatch.setattr(FabricChoice, "pins_memory", late)
    monkeypatch.setattr(session, "ThreadProxy", Nic if late else ThreadProxy)

    def body(group: ThreadGroup) -> str:
        with low_latency(group, case(1, num_ranks=3, num_experts=3, hidden=128).shape) as buffer:
            rows, _ = buffer._session.zero_copy(4096)
            assert (rows.data_ptr() in driver.shared) == late
            return str(buffer.memory_bill())

    bill = run_gpu_ranks(driver, 3, body)[0]
    taken = "taken and registered when their size is first asked for; in device memory as the other rows"
    assert (taken if late else "taken when their size is first asked for; in host memory\n") in bill
    assert bill.endswith("rows in device memory: a test")
    assert driver.held() == NOTHING
