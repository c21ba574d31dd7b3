"""Masks in place, in both modes and every kind of world: a masked rank is neither sent to nor waited for, a silent one
is masked, and nobody else notices; rows to the bit as the reference has them with the mask."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from tests.end_to_end.play import budgets, playing
from tests.end_to_end.steps import LowLatencyStep, Step, ThroughputStep
from tests.end_to_end.world import World, as_threads
from tests.uccl_ep.ranks import assert_refused
from uccl_ep import Buffer, NotSupported, ThreadGroup, memory_bill

WORLDS = {
    "one node": World(4),
    "2 nodes x 2, tcp": World(4, 2, "tcp"),
    "4 nodes x 1": World(4, 1, "shared_memory"),
    "uneven nodes": World(5, 3, "shared_memory"),
    "2 nodes x 2, any order": World(4, 2, "loopback", shuffle_seed=5),
}
TIMEOUT_S = 1.5


def step(mode: str, number: int, lost: tuple[int, ...] = (), surprise: bool = False) -> Step:
    if mode == "l":
        return LowLatencyStep(number, max_tokens=8, hidden=256, traffic="uniform", send="hook", topk=3, masked=lost)
    use_async = number % 2 == 1
    return ThroughputStep(
        number, 24, 128, topk=3, traffic="uniform", use_async=use_async, masked=lost, apart=True, surprise=surprise
    )


def make(group: Any, mode: str, per_node: int) -> Buffer:
    nvl, rdma = budgets([step(mode, 0)], group.size(), per_node, slack=6)
    return Buffer(group, nvl, rdma, low_latency_mode=rdma > 0, enable_shrink=True, explicitly_destroy=True)


def play(buffer: Buffer, one: Step, per_node: int) -> None:
    assert set(playing(buffer, one, per_node or None)) == {"send", "receive"}


def masks(buffer: Buffer) -> list[int]:
    status = torch.zeros(buffer.group_size, dtype=torch.int32)
    buffer.low_latency_query_mask_buffer(status)
    return [rank for rank in range(buffer.group_size) if status[rank]]


@pytest.mark.mostly_slow(quick=4)
@pytest.mark.parametrize("mode", ["l", "t"])
@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_masks_part_the_ranks_in_place(mode: str, world: World) -> None:
    side = (2,)

    def body(group: ThreadGroup) -> None:
        buffer = make(group, mode, world.ranks_per_node)
        try:
            for number in range(4):
                play(buffer, step(mode, number), world.ranks_per_node)
            group.barrier()
            others = [r for r in range(world.ranks) if (r in side) != (group.rank() in side)]
            for rank in others:
                buffer.low_latency_update_mask_buffer(rank, True)
            for number in range(4, 12):
                play(buffer, step(mode, number, side), world.ranks_per_node)
            assert masks(buffer) == others
            buffer.barrier()  # of each side for itself
            group.barrier()
        finally:
            buffer.destroy()

    as_threads(world, body)


@pytest.mark.mostly_slow(quick=4)
@pytest.mark.parametrize("mode", ["l", "t"])
@pytest.mark.parametrize("leaves", [True, False], ids=["leaves", "silent"])
@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_masks_come_of_themselves(mode: str, world: World, leaves: bool) -> None:
    """Of a rank that does not come within the deadline, or has left: no call fails, one is late."""
    from dataclasses import replace

    victim = 3 if leaves else 1
    slow = replace(world, timeout_s=20.0 if leaves else TIMEOUT_S)

    def body(group: ThreadGroup) -> None:
        buffer = make(group, mode, world.ranks_per_node)
        try:
            for number in range(3):
                play(buffer, step(mode, number), world.ranks_per_node)
            if group.rank() == victim:
                if not leaves:
                    group.barrier()  # it is there, and does nothing
                return
            play(buffer, step(mode, 3, (victim,), surprise=True), world.ranks_per_node)
            assert masks(buffer) == [victim]
            begin = time.monotonic()
            for number in range(4, 12):
                play(buffer, step(mode, number, (victim,)), world.ranks_per_node)
            assert time.monotonic() - begin < 10.0  # not waited for again
            if not leaves:
                group.barrier()
        finally:
            buffer.destroy()

    as_threads(slow, body)


def test_masks_of_throughput_cannot_be_taken_back_after_a_dispatch() -> None:
    def body(group: ThreadGroup) -> None:
        buffer = make(group, "t", 0)
        other = 1 - group.rank()
        for _ in range(3):
            play(buffer, step("t", 0), 0)
            group.barrier()
            buffer.low_latency_update_mask_buffer(other, True)
            buffer.low_latency_update_mask_buffer(other)  # nothing was missed
            buffer.low_latency_update_mask_buffer(other, True)
            buffer.low_latency_clean_mask_buffer()
            group.barrier()
        buffer.low_latency_update_mask_buffer(other, True)
        play(buffer, step("t", 1, (1,)), 0)
        for call in (lambda: buffer.low_latency_update_mask_buffer(other), buffer.low_latency_clean_mask_buffer):
            with pytest.raises(NotSupported, match=rf"unmasking rank\(s\) {other}: .*throughput dispatch.*recover"):
                call()
        group.barrier()
        assert buffer.recover() == [0, 1]  # a life without masks
        assert masks(buffer) == []
        play(buffer, step("t", 2), 0)
        group.barrier()
        buffer.destroy()

    as_threads(World(2), body)


def test_masks_of_absent_ranks_stay() -> None:
    def body(group: ThreadGroup) -> None:
        buffer = make(group, "l", 1)
        if group.rank() == 2:
            buffer.destroy()
            return
        assert buffer.recover() == [0, 1]
        assert masks(buffer) == [2]
        assert_refused(lambda: buffer.low_latency_update_mask_buffer(2), ["rank_to_mask=2", "takes part"])
        buffer.low_latency_clean_mask_buffer()
        assert masks(buffer) == [2]
        play(buffer, step("l", 1, (2,)), 1)
        buffer.low_latency_update_mask_buffer(1 - group.rank(), True)
        assert masks(buffer) == sorted([1 - group.rank(), 2])
        buffer.destroy()

    as_threads(World(3, 1, "tcp"), body)


def test_masks_cost_memory_that_the_bill_states() -> None:
    shared = memory_bill(128, 7168, 16, 64, ranks_per_node=8)
    apart = memory_bill(128, 7168, 16, 64, ranks_per_node=8, enable_shrink=True)
    rows = {item.name: item.num_bytes for item in shared.items}, {item.name: item.num_bytes for item in apart.items}
    assert rows[1]["hosted rows"] == 8 * rows[0]["hosted rows"]
    assert rows[1]["combine slots"] == rows[0]["combine slots"]
    one_node = [memory_bill(128, 7168, 8, 64, ranks_per_node=8, enable_shrink=on).total_bytes for on in (True, False)]
    assert one_node[0] == one_node[1]
