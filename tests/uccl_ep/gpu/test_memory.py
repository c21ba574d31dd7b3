"""Memory of ranks on a GPU: shared between threads and processes, pinned, given back in every order and failure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.uccl_ep.gpu.fake_driver import FakeDriver
from tests.uccl_ep.gpu.worlds import install, run_gpu_ranks
from tests.uccl_ep.ranks import MIB, assert_low_latency, case, low_latency, reference_of, throughput
from uccl_ep import Buffer, InvalidArgument, PeerLost, PeerTimeout, ThreadGroup, TransportError, UcclEpError, _native
from uccl_ep.gpu.driver import refuse_unmapped
from uccl_ep.gpu.memory import GpuRegions
from uccl_ep.group.handshake import Endpoints
from uccl_ep.layout import arrangement
from uccl_ep.layout.placement import Placement
from uccl_ep.survival.life import Life

ROOT = Path(__file__).resolve().parents[3]
NOTHING = {"allocated": 0, "opened": 0, "pinned": 0}


@pytest.mark.slow
@pytest.mark.timeout(120)  # two interpreters import torch
@pytest.mark.parametrize("can_export", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_gpu_memory_is_shared_between_processes(tmp_path: Path, can_export: bool) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("UCCL_EP_")}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.uccl_ep.gpu.two_processes", str(rank), "2", str(tmp_path / "meet"),
             str(int(can_export))],
            cwd=ROOT, env={**environment, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=100) for process in ranks]
    assert all(process.returncode == 0 for process in ranks), [errors[-2000:] for _, errors in outputs]
    facts = [json.loads(output.splitlines()[-1]) for output, _ in outputs]
    for seen in facts:
        assert seen["placement"] == ("device" if can_export else "host") and seen["opened"] == int(can_export)
        assert seen["parked at the end"] == 0 and seen["held at the end"] == NOTHING
        assert ("cannot share its memory" in seen["reason"]) == (not can_export)
    assert facts[0]["parked"] == int(can_export)
    assert facts[0]["held"] == {**NOTHING, "allocated": int(can_export)}


def test_gpu_memory_of_threads_is_used_by_address(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = install(monkeypatch, FakeDriver())

    def body(group: ThreadGroup) -> tuple[dict[str, int], list[int]]:
        with throughput(group) as buffer:
            regions = buffer._session.regions
            assert isinstance(regions, GpuRegions)
            group.barrier()
            buffer.get_local_buffer_tensor(torch.uint8).fill_(group.rank())
            buffer.barrier()
            word = regions.data_word(1 - group.rank(), buffer._session.plan.throughput.base)
            assert word == (1 - group.rank()) * 0x0101010101010101
            held = driver.held()
            own = [at in driver.shared for at in (regions._own["data"].address, *regions.kernel_words.addresses)]
            assert own == [True, False, False]  # words and tables are this GPU's kernels' alone
            group.barrier()
            return held, [regions._node["data"][r] for r in range(2)]

    (held, first), (_, second) = run_gpu_ranks(driver, 2, body)
    assert first == second and held["opened"] == 0
    assert held["pinned"] == 6  # control, rings and words for the host of each rank, once
    assert driver.held() == NOTHING


@pytest.mark.parametrize("per_node, where, pinned", [(0, "device", 6), (1, "host", 8)])
def test_gpu_memory_bill_says_where_rows_lie_and_why(
    variables: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], per_node: int, where: str,
    pinned: int,
) -> None:  # fmt: skip
    variables(RANKS_PER_NODE=per_node, EXPLAIN=1)
    driver = install(monkeypatch, FakeDriver())

    def body(group: ThreadGroup) -> None:
        with throughput(group) as buffer:
            session = buffer._session
            assert str(buffer.memory_bill()).endswith(f"rows in {where} memory: {session.placement.reason}")
            group.barrier()
            assert driver.held()["pinned"] == pinned
            group.barrier()

    run_gpu_ranks(driver, 2, body)
    errors = capfd.readouterr().err
    assert f"rows in {where} memory: " in errors and "device cuda, Fake (0000:00:00.0)" in errors
    assert "transport shared_memory: " in errors
    assert errors.count("uccl-ep: transport") == 1  # one rank speaks for all


def on_device(ranks: frozenset[int], way: str = "none") -> Any:
    """Stands for choose_placement: rows in GPU memory between nodes, for these ranks by address."""
    ways = dict.fromkeys(range(8), (way, "a test"))
    return lambda hellos, topology, family: Placement("device", "a test", ranks, ways)


@pytest.mark.parametrize("by_address", [True, False])
def test_gpu_memory_that_nics_write_by_its_addresses(
    variables: Any, monkeypatch: pytest.MonkeyPatch, by_address: bool
) -> None:
    """The proxy is told the GPU's own addresses, with a dma-buf too: a NIC that refuses that one may know them. On the
    fake GPU a CPU can use them: tcp stands for a NIC."""
    variables(RANKS_PER_NODE=1, TRANSPORT="tcp")
    driver = install(monkeypatch, FakeDriver(num_sms=12))
    monkeypatch.setattr(arrangement, "choose_placement", on_device(frozenset(range(3) if by_address else ())))
    c = case(9, num_ranks=3, num_experts=6, num_topk=2, hidden=512, max_tokens=12)
    wanted = reference_of(c)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        with low_latency(group, c.shape) as buffer:
            regions, plan = buffer._session.regions, buffer._session.plan
            assert isinstance(regions, GpuRegions)
            own = regions._own["data"].address
            ((offset, address, dmabufs),) = regions.devices()
            assert (offset, address, not dmabufs) == (0, own, by_address)
            assert regions.spans()[0] == (0, plan.data_bytes, -1)
            assert regions.endpoints(b"", 0).data_fd == -1
            got = buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], 12, 6, use_fp8=False)
            driver.settle()
            assert_low_latency(got[:3], wanted[rank])
            rows, offset = buffer._session.zero_copy(4096)
            assert offset == plan.zero_copy_offset
            assert driver._allocated.get(rows.data_ptr()) is None  # pinned host memory: tcp registers nothing later
            buffer.barrier()

    run_gpu_ranks(driver, 3, body)
    assert driver.held() == NOTHING


def test_gpu_memory_is_flushed_by_the_driver_before_flags_are_raised(
    variables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables(RANKS_PER_NODE=1, TRANSPORT="tcp", TIMEOUT_S=5)
    driver = install(monkeypatch, FakeDriver(num_sms=8))
    monkeypatch.setattr(arrangement, "choose_placement", on_device(frozenset(range(2)), "driver"))
    c = case(9, num_ranks=2, num_experts=6, num_topk=2, hidden=512, max_tokens=12)
    wanted = reference_of(c)

    def body(group: ThreadGroup) -> str:
        rank = group.rank()
        with low_latency(group, c.shape) as buffer:
            got = buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], 12, 6, use_fp8=False)
            driver.settle()
            assert_low_latency(got[:3], wanted[rank])
            assert driver.flushes and set(driver.flushes) == {(77, 0, 200)}
            group.barrier()
            driver.flush_error = 719
            # A rank whose proxy fails before it has sent leaves the other one waiting.
            with pytest.raises((TransportError, PeerTimeout, PeerLost)) as caught:
                for _ in range(3):
                    buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], 12, 6, use_fp8=False)
                    driver.settle()
            group.barrier()
            return str(caught.value)

    said = run_gpu_ranks(driver, 2, body)
    assert any("could not make visible what NICs have written: its error 719" in error for error in said), said
    assert driver.held() == NOTHING


def test_gpu_memory_that_nics_write_by_dmabuf(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    variables(RANKS_PER_NODE=1, TRANSPORT="tcp")
    driver = install(monkeypatch, FakeDriver())
    monkeypatch.setattr(arrangement, "choose_placement", on_device(frozenset([1])))
    before = len(os.listdir("/proc/self/fd"))

    def body(group: ThreadGroup) -> None:
        buffer = Buffer(group, 8 * MIB)
        ((offset, address, dmabufs),) = buffer._session.regions.devices()
        parts = -(-buffer._session.plan.data_bytes // (2 << 20))
        assert offset == 0 and parts > 1 and len(dmabufs) == (parts if group.rank() == 0 else 0)
        for dmabuf in dmabufs:
            assert os.fstat(dmabuf).st_size == os.fstat(driver._allocated[address].fd).st_size
        buffer.destroy()

    monkeypatch.setattr(_native, "DMABUF_BYTES", 2 << 20)
    run_gpu_ranks(driver, 2, body)
    assert driver.held() == NOTHING and len(os.listdir("/proc/self/fd")) <= before


def test_gpu_memory_that_is_exported_as_a_whole_only(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """AMD's: a part is refused, and the descriptors made before that are closed."""
    variables(RANKS_PER_NODE=1, TRANSPORT="tcp")
    driver = install(monkeypatch, FakeDriver())
    monkeypatch.setattr(arrangement, "choose_placement", on_device(frozenset()))
    monkeypatch.setattr(_native, "DMABUF_BYTES", 2 << 20)
    export, before = driver.dmabuf, len(os.listdir("/proc/self/fd"))

    def whole_only(address: int, num_bytes: int) -> int:
        if address not in driver._allocated:
            raise UcclEpError("the memory begins 2097152 bytes into its dma-buf")
        return export(address, num_bytes)

    monkeypatch.setattr(driver, "dmabuf", whole_only)

    def body(group: ThreadGroup) -> None:
        buffer = Buffer(group, 8 * MIB)
        ((_, _, dmabufs),) = buffer._session.regions.devices()
        assert len(dmabufs) == 1
        buffer.destroy()

    run_gpu_ranks(driver, 2, body)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_gpu_memory_a_dmabuf_that_is_refused_names_rank_and_way_out(
    variables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables(RANKS_PER_NODE=1, TRANSPORT="tcp")
    driver = install(monkeypatch, FakeDriver())
    driver.no_dmabuf = "CUDA_ERROR_NOT_SUPPORTED (801)"
    monkeypatch.setattr(arrangement, "choose_placement", on_device(frozenset()))

    def body(group: ThreadGroup) -> str:
        with pytest.raises(UcclEpError) as caught:
            Buffer(group, MIB)
        return str(caught.value)

    first, second = run_gpu_ranks(driver, 2, body)
    assert first == second
    for words in ("rank 1 cannot export", "CUDA_ERROR_NOT_SUPPORTED (801)", "UCCL_EP_GPU_MEMORY=host keeps rows"):
        assert words in first
    assert driver.held() == NOTHING


def test_gpu_memory_pinning_that_is_refused_is_explained_everywhere(
    variables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables(RANKS_PER_NODE=1)
    driver = install(monkeypatch, FakeDriver())
    driver.pin_limit = 3 * MIB

    def body(group: ThreadGroup) -> str:
        with pytest.raises(UcclEpError) as caught:
            Buffer(group, 4 * MIB)
        return str(caught.value)

    first, second = run_gpu_ranks(driver, 2, body)
    assert first == second
    for words in (
        "rank 0 cannot pin the 4", "MiB of its data for GPU Fake: locked memory is limited to", "ulimit -l",
        "Rows are pinned too because proxies read and write rows with the CPU (shared_memory)",
    ):  # fmt: skip
        assert words in first
    assert driver.held() == NOTHING


@pytest.mark.mostly_slow(quick=3)
@pytest.mark.parametrize("step", ["allocate", "register", "write", "view"])
@pytest.mark.parametrize("per_node", [0, 1])
def test_gpu_memory_of_a_failed_start_is_given_back(
    variables: Any, monkeypatch: pytest.MonkeyPatch, step: str, per_node: int
) -> None:
    """The driver fails at its n-th call, for every n until the start succeeds."""
    variables(RANKS_PER_NODE=per_node)
    driver = install(monkeypatch, FakeDriver())
    original = getattr(driver, step)
    left = [0]

    def failing(*args: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise UcclEpError(f"{step} failed")
        return original(*args)

    monkeypatch.setattr(driver, step, failing)

    def body(group: ThreadGroup) -> bool:
        try:
            Buffer(group, MIB).destroy()
        except UcclEpError as error:
            assert f"{step} failed" in str(error)
            return False
        return True

    for good_calls in range(30):
        left[0] = good_calls
        started = run_gpu_ranks(driver, 2, body)
        assert driver.held() == NOTHING
        if all(started):
            break
    assert all(started) and good_calls > 0


def test_gpu_memory_zero_copy_rows_grow_without_moving_what_graphs_name(
    variables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = install(monkeypatch, FakeDriver())
    c = case(1, num_ranks=1, hidden=128)

    def body(group: ThreadGroup) -> None:
        with low_latency(group, c.shape) as buffer:
            session = buffer._session
            small, offset = session.zero_copy(1000)
            assert small.numel() == 2 * MIB and offset == session.plan.zero_copy_offset
            assert session.zero_copy(2 * MIB)[0].data_ptr() == small.data_ptr()
            small.fill_(5)
            large, _ = session.zero_copy(2 * MIB + 1)
            assert large.numel() == 4 * MIB and large.data_ptr() != small.data_ptr()
            small.fill_(6)  # still there
            assert session.zero_copy(1 << 40)[0].numel() == 4 * MIB  # more than offsets can name: the caller refuses
            with driver.capture(), pytest.raises(UcclEpError, match="once for these sizes before the capture"):
                session.zero_copy(5 * MIB)
            driver.settle()
        with throughput(group) as buffer, pytest.raises(InvalidArgument, match="low_latency_mode=True"):
            buffer._session.zero_copy(1)

    run_gpu_ranks(driver, 1, body)
    assert driver.held() == NOTHING


def test_gpu_memory_a_gpu_that_cannot_map_host_memory_is_refused() -> None:
    refuse_unmapped(FakeDriver())  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="GPU Fake cannot map host memory.*device='cpu'"):
        refuse_unmapped(FakeDriver(maps_host_memory=False))  # type: ignore[arg-type]


def test_gpu_memory_a_handle_that_is_none_names_the_rank(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = install(monkeypatch, FakeDriver())
    regions = GpuRegions.__new__(GpuRegions)
    regions._driver, regions.rank = driver, 4  # type: ignore[assignment]
    regions.placement = SimpleNamespace(where="device")  # type: ignore[assignment]
    peer = SimpleNamespace(endpoints=Endpoints(9, 1, -1, 0, -1, 0, 0, b"", data_handle=b"junk"), same_process=False)
    with pytest.raises(UcclEpError, match="rank 4 cannot open the GPU memory of rank 9: no memory handle"):
        regions._reach("data", peer)  # type: ignore[arg-type]


def test_gpu_memory_a_rank_that_fails_last_ends_the_start_everywhere(
    variables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even when all memory has been made and opened."""
    driver = install(monkeypatch, FakeDriver())
    original = Life._prepare

    def prepare(self: Life, session: Any) -> None:
        original(self, session)
        if session.rank == 1:
            raise MemoryError("no room for one tensor more")

    monkeypatch.setattr(Life, "_prepare", prepare)

    def body(group: ThreadGroup) -> str:
        with pytest.raises(UcclEpError) as caught:
            Buffer(group, MIB)
        return str(caught.value)

    assert set(run_gpu_ranks(driver, 2, body)) == {"rank 1: MemoryError: no room for one tensor more"}
    assert driver.held() == NOTHING
