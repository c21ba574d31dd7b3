"""Checks of the mask calls (enable_shrink): who is left out of low-latency calls, and what that does to sums."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from uccl_ep.tools.conformance.low_latency_combine import combine, outputs, wanted_sum
from uccl_ep.tools.conformance.low_latency_dispatch import compare, dispatch, expected
from uccl_ep.tools.conformance.registry import Skipped, check
from uccl_ep.tools.conformance.world import World


@contextmanager
def shrinking_buffer(world: World) -> Iterator[Any]:
    """A low-latency Buffer with enable_shrink, destroyed when all ranks are done. Collective."""
    buffer = world.new_buffer("low_latency", enable_shrink=True)
    try:
        yield buffer
        world.gather(None)  # a rank that leaves early is a lost peer to the others
    finally:
        buffer.destroy()


def status(world: World, buffer: Any) -> list[int]:
    """The mask, by rank."""
    mask = torch.full((world.size,), 9, dtype=torch.int32, device=world.device)
    buffer.low_latency_query_mask_buffer(mask)
    return [int(value) for value in mask.cpu()]


@check("A.6")
def mask_update_query_clean(world: World) -> None:
    """Masks are set, read as int32 1 and 0, taken back (update's default unmasks) and cleaned. Part A.6."""
    with shrinking_buffer(world) as buffer:
        other = (world.rank + 1) % world.size
        one = [int(rank == other) for rank in range(world.size)]
        world.equal("the mask at first", status(world, buffer), [0] * world.size)
        buffer.low_latency_update_mask_buffer(other, True)
        world.equal("the mask after update(rank, True)", status(world, buffer), one)
        buffer.low_latency_update_mask_buffer(other)
        world.equal("the mask after update(rank)", status(world, buffer), [0] * world.size)
        buffer.low_latency_update_mask_buffer(other, mask=True)
        buffer.low_latency_clean_mask_buffer()
        world.equal("the mask after clean", status(world, buffer), [0] * world.size)


@check("A.6")
def mask_leaves_a_rank_out(world: World) -> None:
    """A masked rank gets and gives nothing; sums leave its experts out, the other weights as they are. Part A.6."""
    last = world.size - 1
    masked = [{last} if rank != last else set(range(last)) for rank in range(world.size)]
    case, rows = world.case(), outputs(world)
    with shrinking_buffer(world) as buffer:
        for rank in masked[world.rank]:
            buffer.low_latency_update_mask_buffer(rank, True)
        got = dispatch(world, case, buffer, use_fp8=False)
        compare(world, got, expected(world, case, masked=masked)[world.rank])
        results = combine(world, case, got, rows[world.rank], buffer)
        world.equal("combined_x", results[0], wanted_sum(world, case, got, rows, masked))


@check("A.6")
def mask_calls_need_enable_shrink(world: World) -> None:
    """Without enable_shrink the mask calls are refused. Parts A.2 and A.6."""
    buffer = world.buffer("low_latency")
    if getattr(buffer, "enable_shrink", False):
        raise Skipped("this library always has masks")
    world.refused("low_latency_update_mask_buffer", lambda: buffer.low_latency_update_mask_buffer(0, True))
    world.refused("low_latency_query_mask_buffer", lambda: status(world, buffer))
    world.refused("low_latency_clean_mask_buffer", buffer.low_latency_clean_mask_buffer)
