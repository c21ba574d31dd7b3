"""A GPU as a device: shares, channels, grids and queues, pinned words, and what is refused."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.uccl_ep.gpu.fake_driver import FakeDriver
from tests.uccl_ep.gpu.worlds import install, run_gpu_ranks
from tests.uccl_ep.ranks import (
    MIB,
    assert_refused,
    case,
    expert_rows,
    low_latency,
    throughput,
)
from uccl_ep import (
    Buffer,
    InvalidArgument,
    SettingsMismatch,
    ThreadGroup,
    UcclEpError,
)
from uccl_ep.config import Config
from uccl_ep.gpu.device import PinnedPool, Share, share_of
from uccl_ep.gpu.streams import CallOrder
from uccl_ep.group.handshake import Hello, empty


def test_gpu_device_wrong_tensors_and_groups_are_refused(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = install(monkeypatch, FakeDriver())
    meta = torch.empty(2, 128, dtype=torch.bfloat16, device="meta")

    def body(group: ThreadGroup) -> None:
        ids = torch.zeros(2, 1, dtype=torch.int64)
        with low_latency(group, case(1, num_ranks=2).shape) as buffer:
            for call in (
                lambda: buffer.low_latency_dispatch(meta, ids, 16, 8),
                lambda: buffer.dispatch(meta, handle=(1,)),
                lambda: buffer.combine(meta, (1,)),
            ):
                assert_refused(call, ["x=a tensor on meta", "a tensor on cpu"])
        with pytest.raises(SettingsMismatch, match="device differs: rank 0 .*: 'cuda', rank 1 .*: 'cpu'"):
            Buffer(group, MIB, device="cpu" if group.rank() == 1 else "cuda")

    run_gpu_ranks(driver, 2, body)


def hellos(*gpus: tuple[str, str, int]) -> list[Hello]:
    """One rank for each (process, gpu, SMs)."""
    return [
        Hello(r, "h", "h", process, 1, "", {}, 5, b"", device="cuda", gpu=gpu, num_sms=sms, exportable=1)
        for r, (process, gpu, sms) in enumerate(gpus)
    ]


def test_gpu_device_share_of_a_gpu() -> None:
    alone = share_of(hellos(("p", "a", 132), ("q", "b", 80)), 0)
    assert (alone.ranks, alone.threads, alone.sms, alone.blocks) == (
        1,
        1,
        132,
        80,
    )  # channels must be the same on all ranks
    crowd = share_of(hellos(("p", "a", 32), ("p", "a", 32), ("q", "a", 32), ("r", "b", 8)), 1)
    assert (crowd.ranks, crowd.threads, crowd.sms, crowd.blocks) == (3, 2, 10, 8)
    with pytest.raises(InvalidArgument, match="3 ranks on GPU a of h with 8 SMs are refused: each needs 3 SMs"):
        share_of(hellos(*[("p", "a", 8)] * 3), 0)


def test_gpu_device_share_among_those_that_are_left() -> None:
    told = hellos(("p", "a", 32), ("p", "a", 32), ("q", "a", 30), ("q", "b", 12))
    left = [empty(Hello, 0), *told[1:]]
    assert share_of(left, 3) == share_of(told[1:], 3) == Share(1, 1, 12, 12)
    assert share_of(left, 1) == Share(2, 1, 16, 12)


@pytest.mark.parametrize("sms, num_sms, per_node, wanted", [
    (132, 20, 0, 10), (132, 20, 1, 6), (24, 20, 0, 6), (24, 20, 1, 4), (132, 0, 0, 1), (1000, 1000, 0, 64),
])  # fmt: skip
def test_gpu_device_channels_keep_to_num_sms_and_to_the_share(
    variables: Any, monkeypatch: pytest.MonkeyPatch, sms: int, num_sms: int, per_node: int, wanted: int
) -> None:
    variables(RANKS_PER_NODE=per_node)
    driver = install(monkeypatch, FakeDriver(num_sms=sms))

    def body(group: ThreadGroup) -> None:
        with throughput(group) as buffer:
            config = Config(num_sms)
            assert buffer._device.channels(config.num_sms) == wanted
            roles = 3 if per_node else 2
            assert roles * wanted <= max(roles, min(num_sms, sms // 2))

    run_gpu_ranks(driver, 2, body)


def test_gpu_device_grids_leave_room_for_every_rank(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = install(monkeypatch, FakeDriver(num_sms=12))
    driver.blocks_per_sm = 3  # of this kernel; another rank's may need more of an SM than that leaves
    grids: list[tuple[str, int]] = []
    launch = driver.library.launch

    def watched(name: str, args: bytes, grid: int, warps: int, stream: Any) -> None:
        grids.append((name, grid))
        launch(name, args, grid, warps, stream)

    monkeypatch.setattr(driver.library, "launch", watched)
    c = case(97, "uniform", num_ranks=3, num_experts=3, hidden=128, max_tokens=16)

    def body(group: ThreadGroup) -> None:
        with low_latency(group, c.shape) as buffer:
            rank = group.rank()
            got = buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], 16, 3)
            buffer.low_latency_combine(expert_rows(rank, c.shape), c.topk_idx[rank], c.topk_weights[rank], got[2])
            driver.settle()
            five = SimpleNamespace(kernel="rank_barrier", args=b"", blocks=5, warps=1, exact=True)
            with pytest.raises(UcclEpError, match="with 5 blocks is refused: 4 can run at once"):
                buffer._device.launch(five)  # type: ignore[arg-type]

    run_gpu_ranks(driver, 3, body)
    assert {"low_latency_dispatch_send", "low_latency_combine_recv"} <= {name for name, _ in grids}
    assert max(grid for _, grid in grids) == 4


def test_gpu_device_kernels_that_take_all_processors_are_behind_those_of_the_ranks_other_buffer(
    variables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = install(monkeypatch, FakeDriver(num_sms=12))
    ordered: list[CallOrder] = []
    behind = CallOrder.behind_neighbours
    monkeypatch.setattr(CallOrder, "behind_neighbours", lambda order: (ordered.append(order), behind(order))[1])
    c = case(97, "uniform", num_ranks=2, num_experts=2, hidden=128, max_tokens=16)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()

        def play(buffer: Buffer) -> list[CallOrder]:
            group.barrier()
            if rank == 0:
                ordered.clear()
            group.barrier()
            got = buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], 16, 2)
            buffer.low_latency_combine(expert_rows(rank, c.shape), c.topk_idx[rank], c.topk_weights[rank], got[2])
            driver.settle()
            group.barrier()
            return [order for order in ordered if order is buffer._device._order]  # type: ignore[attr-defined]

        with low_latency(group, c.shape) as one:
            assert play(one) == []
            with low_latency(group, c.shape) as two:
                assert [len(play(buffer)) for buffer in (one, two, one)] == [4, 4, 4]
            assert play(one) == []

    run_gpu_ranks(driver, 2, body)


def test_gpu_device_too_few_queues_for_the_ranks_of_a_process(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = install(monkeypatch, FakeDriver(num_sms=64))
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS")

    def body(group: ThreadGroup) -> None:
        with pytest.raises(UcclEpError, match="5 ranks of one process share a GPU.*CUDA_DEVICE_MAX_CONNECTIONS=10"):
            Buffer(group, MIB)

    run_gpu_ranks(driver, 5, body)
    assert driver.held() == {"allocated": 0, "opened": 0, "pinned": 0}


def test_gpu_device_pinned_words_are_given_back_and_taken_again() -> None:
    driver = FakeDriver()
    pool = PinnedPool(driver)
    assert driver.held()["pinned"] == 1  # before anything is asked for
    first = pool.take(3, torch.int32)
    address = first.data_ptr()
    assert address % 64 == 0 and first.tensor.tolist() == [0, 0, 0] and address != first.tensor.data_ptr()
    driver.view(address, 12).view(torch.int32)[:] = 7  # a kernel
    assert first.tensor.tolist() == [7, 7, 7]
    others = [pool.take(3, torch.int32) for _ in range(5000)]
    assert len({o.data_ptr() for o in others} | {address}) == 5001
    large = pool.take(100_000, torch.int64)
    assert large.tensor.numel() == 100_000 and driver.held()["pinned"] >= 3
    del first
    again = [pool.take(1, torch.int32) for _ in range(5000)]
    assert address in {a.data_ptr() for a in again}
    pool.close()
    assert driver.held()["pinned"] == 0


def test_gpu_device_two_buffers_of_a_rank_share_its_stream(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = install(monkeypatch, FakeDriver())
    c = case(98, "uniform", num_ranks=2, num_experts=4, hidden=128, max_tokens=8)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        with low_latency(group, c.shape) as one, throughput(group) as two:
            assert one.get_comm_stream() is not two.get_comm_stream()
            one.low_latency_dispatch(c.x[rank], c.topk_idx[rank], 8, 4)
            two.get_dispatch_layout(c.topk_idx[rank], 4)
            driver.settle()

    run_gpu_ranks(driver, 2, body)
    assert dataclasses.is_dataclass(driver.facts)
