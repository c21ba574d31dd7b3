"""Checks of V2.5: weights and gradients of redundant experts, and buckets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from uccl_ep.tools.conformance.registry import Skipped, check
from uccl_ep.tools.conformance.world import LOCAL_EXPERTS, World

Tensor = torch.Tensor
_GRANULE = 2 << 20  # bytes
_SLOTS, _WIDTH = 4, 3080  # the width in f32: more than upstream's chunk of 12 KiB, and a tail of 32 bytes


@contextmanager
def balanced(world: World) -> Iterator[tuple[Any, Tensor, list[int]]]:
    """(the module's EPBuffer, its f32 slots [_SLOTS, _WIDTH], the ranks of this rank's domain). Collective.

    Raises:
        Skipped: the module has none, or domains differ in size.
    """
    if not hasattr(world.module, "EPBuffer") or not hasattr(world.module, "BufferAllocator"):
        raise Skipped("not offered: the module has no EPBuffer with a BufferAllocator")
    plan = world.module.BufferAllocator()
    slots = plan.allocate((_SLOTS, _WIDTH), torch.float32)
    buffer = world.module.EPBuffer(
        world.group, num_bytes=_GRANULE * 4, lb_allocation_plan_or_num_bytes=plan, explicitly_destroy=True
    )
    try:
        size = buffer.num_nvlink_ranks
        if world.size % size:
            raise Skipped("the nodes differ in size")
        first = world.rank // size * size
        yield buffer, slots, list(range(first, first + size))
        world.gather(None)
    finally:
        del plan, slots
        buffer.destroy()


def mapping_of(world: World, turn: int, domain: list[int]) -> Tensor:
    """int32 [ranks of the domain, _SLOTS]: any expert of another rank there, or -1."""
    generator = torch.Generator().manual_seed(97 * world.seed + turn)
    others = (len(domain) - 1) * LOCAL_EXPERTS
    table = torch.randint(0, max(1, others), (len(domain), _SLOTS), generator=generator)
    table += (table >= torch.arange(len(domain)).unsqueeze(1) * LOCAL_EXPERTS) * LOCAL_EXPERTS
    empty = torch.rand(table.shape, generator=generator) < (0.3 if others else 2.0)
    return torch.where(empty, -1, table).int()


def whole_numbers(world: World, turn: int, rank: int, *shape: int) -> Tensor:
    """f32 whose sums are exact in any order."""
    generator = torch.Generator().manual_seed(1000 * (world.seed + 1) + 50 * rank + turn)
    return torch.randint(-999, 1000, shape, generator=generator).float()


@check("C.6")
def lb_prefetch_fills_assigned_slots(world: World) -> None:
    """lb_prefetch_weights copies an expert's bytes into each slot that has it, and touches no other slot. Part C.6."""
    with balanced(world) as (buffer, slots, domain):
        for turn in range(3):
            mapping = mapping_of(world, turn, domain)
            weights = [whole_numbers(world, turn, rank, LOCAL_EXPERTS, _WIDTH) for rank in domain]
            slots.fill_(-7.0)
            world.gather(None)
            mine = domain.index(world.rank)
            buffer.lb_prefetch_weights([slots], [world.put(weights[mine])], world.put(mapping)).wait()
            for slot, expert in enumerate(mapping[mine].tolist()):
                owner, local = divmod(expert, LOCAL_EXPERTS)
                wanted = torch.full((_WIDTH,), -7.0) if expert < 0 else weights[owner][local]
                world.equal(f"slot {slot} of expert {expert}", slots[slot], wanted)
            world.gather(None)


@check("C.6")
def lb_reduce_adds_gradients(world: World) -> None:
    """lb_reduce_grads adds what slots hold to the gradients of their experts, and only reads the slots. Part C.6."""
    with balanced(world) as (buffer, slots, domain):
        for turn in range(3):
            mapping = mapping_of(world, 10 + turn, domain)
            lent = [whole_numbers(world, turn, rank, _SLOTS, _WIDTH) for rank in domain]
            wanted = whole_numbers(world, 20 + turn, world.rank, LOCAL_EXPERTS, _WIDTH)
            grads, mine = world.put(wanted.clone()), domain.index(world.rank)
            slots.copy_(lent[mine])
            world.gather(None)
            buffer.lb_reduce_grads(slots, grads, world.put(mapping)).wait()
            for row, ids in enumerate(mapping.tolist()):
                for slot, expert in enumerate(ids):
                    if expert >= 0 and expert // LOCAL_EXPERTS == mine:
                        wanted[expert % LOCAL_EXPERTS] += lent[row][slot]
            world.equal("expert_grads", grads, wanted)
            world.gather(None)
            world.equal("redundant_expert_grads", slots, lent[mine])


@check("C.6")
def bucket_collectives(world: World) -> None:
    """BucketBuffer gathers and reduces in place, and in a session tensors from elsewhere. Part C.6."""
    if not hasattr(world.module, "BucketBuffer"):
        raise Skipped("not offered: the module has no BucketBuffer")
    if world.size == 1:
        raise Skipped("upstream reduces among two ranks or more")
    shape = world.size, 32 * world.size
    buffer = world.module.BucketBuffer(world.group, _GRANULE, explicitly_destroy=True)
    try:
        given = [whole_numbers(world, 30, rank, *shape) for rank in range(world.size)]
        total = torch.stack(given).sum(0)
        wanted = {
            "all_gather": torch.stack([rows[0] for rows in given]).flatten(),
            "reduce_scatter": total[world.rank],
            "all_reduce": total,
        }
        for name, result in wanted.items():
            source = given[world.rank][0] if name == "all_gather" else given[world.rank]
            with buffer.session():
                world.equal(f"{name} in a session", getattr(buffer, name)(world.put(source)).wait(), result)
            world.gather(None)
            inside = buffer.storage[: 4 * total.numel()].view(torch.float32).view(shape)
            target = inside[world.rank] if name == "all_gather" else inside
            target.copy_(source)
            got = getattr(buffer, name)(target).wait()
            world.equal(name, got, result)
            place = inside[world.rank] if name == "reduce_scatter" else inside
            world.equal(f"where {name} leaves its result", got.data_ptr(), place.data_ptr())
            world.gather(None)
    finally:
        buffer.destroy()
