"""Ranks of V2's and V2.5's buffers join and leave while the others dispatch and combine."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from tests.end_to_end.world import World
from tests.uccl_ep.ranks import assert_refused
from tests.uccl_ep.survival.serving import MOST, groups_of, run
from uccl_ep import InvalidArgument
from uccl_ep.elastic import ElasticBuffer
from uccl_ep.elastic.ep_buffer import EPBuffer

M, HIDDEN, TOPK = 8, 64, 2
KINDS = [pytest.param(kind, id=kind.__name__) for kind in (ElasticBuffer, EPBuffer)]


def make(kind: Any, group: Any, **options: Any) -> Any:
    return kind(group, num_max_tokens_per_rank=M, hidden=HIDDEN, num_topk=TOPK, explicitly_destroy=True, **options)


def step(buffer: Any, number: int) -> Any:
    """A dispatch and its combine, compared; one expert a rank, and a token goes to the next two ranks."""
    ranks, rank = buffer.num_ranks, buffer.rank_idx
    x = torch.full((M, HIDDEN), float(1 + rank + number % 5)).bfloat16()
    ids = (rank + 1 + torch.arange(min(ranks, TOPK))).remainder(ranks).expand(M, -1).contiguous()
    rows, _, _, handle, _ = buffer.dispatch(x, ids, num_experts=ranks)
    sources = sorted(source for source in range(ranks) if (rank - source - 1) % ranks < min(ranks, TOPK))
    due = torch.cat([torch.full((M, HIDDEN), float(1 + source + number % 5)) for source in sources]).bfloat16()
    assert torch.equal(rows, due)
    assert torch.equal(buffer.combine(rows, handle)[0], (x.float() * min(ranks, TOPK)).bfloat16())
    return handle


def serve_until_switched(buffer: Any) -> int:
    for number in range(MOST):
        step(buffer, number)
        if buffer.switch_members():
            return number
    raise AssertionError("no switch")


@pytest.mark.parametrize("kind", KINDS)
def test_elastic_members_join_and_leave(kind: Any) -> None:
    """From two ranks to three, then rank 0 leaves: the others are numbered anew."""
    world = World(3, 2, "tcp")
    two, three, last = groups_of(2), groups_of(3), groups_of(2)
    joined = threading.Event()

    def stays(rank: int) -> list[int]:
        buffer = make(kind, two[rank])
        before, handle = buffer.num_bytes, step(buffer, 0)
        assert buffer.switch_members() is False
        buffer.prepare_members(three[rank])
        with pytest.raises(InvalidArgument, match="a change of members is under way"):
            buffer.prepare_members(three[rank])
        joined.set()
        found = [serve_until_switched(buffer)]
        assert (buffer.num_ranks, buffer.rank_idx, buffer.group) == (3, rank, three[rank])
        assert buffer.get_physical_domain_size() == (2, 2) and buffer.get_logical_domain_size() == (1, 3)
        assert (buffer.num_rdma_ranks, buffer.num_scaleup_ranks, buffer.scaleup_rank_idx) == (2, 3, rank)
        assert buffer.num_bytes == kind.get_buffer_size_hint(three[rank], M, HIDDEN, TOPK) >= before
        with pytest.raises(InvalidArgument, match=r"one of another Buffer|switch_members\(\)"):
            buffer.combine(torch.zeros(2 * M, HIDDEN).bfloat16(), handle)
        with pytest.raises(InvalidArgument, match=r"one of another Buffer|switch_members\(\)"):
            buffer.dispatch(torch.zeros(M, HIDDEN).bfloat16(), handle=handle)
        return found + goes_on(buffer, rank)

    def goes_on(buffer: Any, rank: int) -> list[int]:
        for number in range(3):
            step(buffer, number)
        buffer.prepare_members(None if rank == 0 else last[rank - 1])
        at = serve_until_switched(buffer)
        if rank:
            assert (buffer.num_ranks, buffer.rank_idx) == (2, rank - 1)
            for number in range(3):
                step(buffer, number)
        buffer.destroy()
        return [at]

    def joins() -> list[int]:
        assert joined.wait(60)
        return goes_on(make(kind, three[2]), 2)

    found = run(world, lambda: stays(0), lambda: stays(1), joins)
    assert found[0] == found[1] and found[2] == found[0][1:]


def test_elastic_members_sizes() -> None:
    world = World(1)
    first, second, third = groups_of(1), groups_of(1), groups_of(1)

    def body() -> None:
        buffer = make(ElasticBuffer, first[0], num_bytes=8 << 20)
        for wrong in (0, 1 << 20, True, -(2 << 20)):
            assert_refused(
                lambda wrong=wrong: buffer.prepare_members(second[0], num_bytes=wrong), ["num_bytes", "2 MiB"]
            )
        buffer.prepare_members(second[0])
        serve_until_switched(buffer)
        assert buffer.num_bytes == 8 << 20  # as it was given
        buffer.prepare_members(third[0], num_bytes=4 << 20)
        serve_until_switched(buffer)
        assert buffer.num_bytes == 4 << 20
        buffer.destroy()

    run(world, body)


def test_ep_buffer_members_move_weights() -> None:
    """The calls that move experts' weights know the new members, too."""
    world = World(2)
    old, new = groups_of(2), groups_of(2)

    def body(rank: int) -> None:
        buffer = make(EPBuffer, old[rank], lb_allocation_plan_or_num_bytes=2 << 20)
        buffer.prepare_members(new[1 - rank])  # they change places
        serve_until_switched(buffer)
        me = buffer.rank_idx
        assert me == 1 - rank
        slots = buffer.lb_storage[: 4 * HIDDEN].view(torch.float32).view(1, HIDDEN)
        weights = torch.full((1, HIDDEN), 10.0 + me)
        buffer.lb_prefetch_weights(slots, weights, torch.tensor([[1], [0]], dtype=torch.int32))
        assert torch.equal(slots, torch.full((1, HIDDEN), 11.0 - me))
        buffer.destroy()

    run(world, lambda: body(0), lambda: body(1))
