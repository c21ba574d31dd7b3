"""prepare_members and switch_members: ranks join, leave and are replaced while calls go on; ranks are threads.

Every call of both lives is compared with the reference, row by row.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from tests.end_to_end.world import World
from tests.uccl_ep.holdings import Holdings
from tests.uccl_ep.ranks import assert_refused
from tests.uccl_ep.survival.serving import groups_of, make, play, run, serve, serve_until_switched, sizes
from uccl_ep import Buffer, InvalidArgument, PeerLost, ThreadGroup, UcclEpError

WORLDS = [
    pytest.param(World(4), id="one node"),
    pytest.param(World(4, 2, "tcp"), id="two nodes, tcp"),
    pytest.param(World(4, 1, "loopback", shuffle_seed=3), id="a node each, loopback"),
]


@pytest.mark.mostly_slow
@pytest.mark.parametrize("world", WORLDS)
def test_members_join_while_the_others_go_on(world: World) -> None:
    """From 2 ranks to 4, with the memory that 4 need."""
    held = Holdings()
    old, new = groups_of(2), groups_of(4)
    join = threading.Event()

    def stays(rank: int) -> int:
        buffer = make(old[rank], world)
        play(buffer, world, 0)
        assert buffer.switch_members() is False  # nothing is under way
        alone = buffer.memory_bill().total_bytes
        buffer.prepare_members(new[rank], **sizes(world, 4))
        for number in range(1, 4):  # nobody has joined yet
            play(buffer, world, number)
            assert buffer.switch_members() is False
        join.set()
        at = serve_until_switched(buffer, world)
        assert (buffer.rank, buffer.group_size, buffer.group) == (rank, 4, new[rank])
        assert buffer.members() == [0, 1, 2, 3] and buffer.memory_bill().total_bytes > alone
        assert (buffer.num_nvl_bytes, buffer.num_rdma_bytes) == tuple(sizes(world, 4).values())
        serve(buffer, world)
        assert len(buffer.stats()["peers"]) == 4
        buffer.destroy()
        return at

    def joins(rank: int) -> None:
        assert join.wait(60)
        buffer = make(new[rank], world)
        serve(buffer, world)
        buffer.destroy()

    at = run(world, *(lambda r=r: stays(r) for r in range(2)), *(lambda r=r: joins(r) for r in (2, 3)))
    assert at[0] == at[1]
    held.assert_gone_back()


@pytest.mark.mostly_slow
@pytest.mark.parametrize("world", WORLDS)
def test_members_are_replaced_one_by_one(world: World) -> None:
    """A rank ends and is masked by agreement; another takes its place. Then that once more, with the next one."""
    groups = [groups_of(4) for _ in range(3)]
    gone, again = threading.Barrier(3), threading.Event()

    def stays(rank: int) -> list[int]:
        buffer = make(groups[0][rank], world, shrink=True)
        play(buffer, world, 0)
        if rank == 1:
            buffer.destroy()
            return replaces(1, 1)
        gone.wait(60)
        while buffer.agree_on_masks(timeout_s=3.0) != [1]:
            pass
        play(buffer, world, 1, 1)
        buffer.prepare_members(groups[1][rank])
        found = [serve_until_switched(buffer, world, 1)]
        return found + goes_on(buffer, rank)

    def replaces(rank: int, change: int) -> list[int]:
        buffer = make(groups[change][rank], world, shrink=True)
        return goes_on(buffer, rank) if change == 1 else ends(buffer)

    def goes_on(buffer: Buffer, rank: int) -> list[int]:
        mask = torch.ones(4, dtype=torch.int32)
        buffer.low_latency_query_mask_buffer(mask)
        assert mask.tolist() == [0, 0, 0, 0]
        serve(buffer, world)
        if rank == 3:
            buffer.destroy()
            again.set()
            return replaces(3, 2)
        assert again.wait(60)
        assert buffer.agree_on_masks(timeout_s=3.0) == [3]
        buffer.prepare_members(groups[2][rank])
        return [serve_until_switched(buffer, world, 3), *ends(buffer)]

    def ends(buffer: Buffer) -> list[int]:
        serve(buffer, world)
        assert buffer.agree_on_masks() == []
        buffer.destroy()
        return []

    found = run(world, *(lambda r=r: stays(r) for r in range(4)))
    assert found[0] == found[2] and found[0][1:] == found[1] and found[3] == found[0][:1]


@pytest.mark.mostly_slow
@pytest.mark.parametrize("world", WORLDS)
def test_members_leave_and_are_numbered_anew(world: World) -> None:
    old, new = groups_of(4), groups_of(3)

    def body(rank: int) -> int:
        buffer = make(old[rank], world)
        place = rank - (rank > 1)
        buffer.prepare_members(None if rank == 1 else new[place], **sizes(world, 3))
        at = serve_until_switched(buffer, world)
        if rank != 1:
            assert (buffer.rank, buffer.group_size) == (place, 3)
            serve(buffer, world)
        buffer.destroy()
        return at

    found = run(world, *(lambda r=r: body(r) for r in range(4)))
    assert len(set(found)) == 1


class Dies:
    """A group of a rank that ends in the exchange numbered `at`; the others of the group notice, as gloo's do."""

    def __init__(self, group: ThreadGroup, at: int) -> None:
        self._group, self._left = group, at

    def rank(self) -> int:
        return self._group.rank()

    def size(self) -> int:
        return self._group.size()

    def all_gather_object(self, value: Any) -> list[Any]:
        self._left -= 1
        if self._left < 0:
            self._group.leave()
            raise EOFError("this rank is gone")
        return self._group.all_gather_object(value)


@pytest.mark.mostly_slow(quick=2)
@pytest.mark.parametrize("exchange", range(4))
def test_members_stay_as_they_are_when_one_that_joins_ends(exchange: int) -> None:
    """In whichever exchange: all raise the same error before the same step, go on, and change once more."""
    world = World(3, 2, "tcp")
    held = Holdings()
    old, new, third = groups_of(2), groups_of(3), groups_of(3)
    failed = threading.Barrier(3)

    def stays(rank: int) -> tuple[int, str]:
        buffer = make(old[rank], world, ranks=3)
        buffer.prepare_members(new[rank])
        caught, at = None, 0
        while caught is None:
            play(buffer, world, at)
            try:
                assert not buffer.switch_members()
            except UcclEpError as error:
                caught = error
            at += 1
        assert (buffer.rank, buffer.group_size, buffer.group) == (rank, 2, old[rank])
        assert not buffer.switch_members()  # it is told once
        for number in range(at, at + 3):
            play(buffer, world, number)
        failed.wait(60)
        buffer.prepare_members(third[rank])
        serve_until_switched(buffer, world)
        serve(buffer, world)
        buffer.destroy()
        return at, str(caught)

    def joins() -> None:
        with pytest.raises(PeerLost):
            make(Dies(new[2], exchange), world, ranks=2)
        failed.wait(60)
        buffer = make(third[2], world, ranks=2)
        serve(buffer, world)
        buffer.destroy()

    found = run(world, lambda: stays(0), lambda: stays(1), joins)
    assert found[0] == found[1]
    assert "the change of members has failed, and its ranks stay as they are: rank " in found[0][1]
    held.assert_gone_back()


def test_members_refuse_what_is_of_the_old_life_or_comes_at_the_wrong_time() -> None:
    world, m, h, experts = World(2), 8, 256, 4
    old, new = groups_of(2), groups_of(2)

    def body(rank: int) -> None:
        buffer = make(old[rank], world, shrink=True)
        for bad in (0, -1.0, float("nan"), 1e9, True):
            assert_refused(lambda bad=bad: buffer.prepare_members(new[rank], timeout_s=bad), ["timeout_s=", "above 0"])
        assert_refused(lambda: buffer.prepare_members(new[rank], num_nvl_bytes=100), ["num_nvl_bytes=100", "128"])
        assert_refused(lambda: buffer.prepare_members(new[rank], num_rdma_bytes=0), ["num_rdma_bytes=0", "low-latency"])
        assert_refused(lambda: buffer.prepare_members("ranks"), ["group='ranks'"])
        assert buffer._standby is None
        buffer.prepare_members(new[rank])
        with pytest.raises(InvalidArgument, match=r"a change of members is under way: switch_members\(\) ends it"):
            buffer.prepare_members(new[rank])
        x, ids, weights = torch.zeros(4, h).bfloat16(), torch.arange(8).view(4, 2) % experts, torch.ones(4, 2)
        layout = buffer.get_dispatch_layout(ids, experts)
        names = ("num_tokens_per_rank", "num_tokens_per_rdma_rank", "num_tokens_per_expert", "is_token_in_rank")
        given = dict(zip(names, layout[:4], strict=True))
        throughput = buffer.dispatch(x, topk_idx=ids, topk_weights=weights, **given)[4]
        n = throughput.routing.num_rows
        buffer.combine(torch.zeros(n, h).bfloat16(), throughput)
        _, _, handle, _, hook = buffer.low_latency_dispatch(x, ids, m, experts, use_fp8=False, return_recv_hook=True)
        assert buffer._standby is not None and buffer._standby._built.wait(30)
        assert any(i.name.startswith("next: ") for i in buffer.memory_bill().items)
        with pytest.raises(InvalidArgument, match=r"switch_members\(\)"):
            while not buffer.switch_members():
                pass
        hook()
        assert buffer.switch_members()  # on a rank that has let the step pass, as soon as it may
        assert not any(i.name.startswith("next: ") for i in buffer.memory_bill().items)
        with pytest.raises(InvalidArgument, match="a receive hook|receive hook is of a call before"):
            hook()
        rows = torch.zeros(2, 2 * m, h).bfloat16()
        assert_refused(lambda: buffer.low_latency_combine(rows, ids, weights, handle), ["handle", "switch_members()"])
        assert_refused(lambda: buffer.combine(torch.zeros(n, h).bfloat16(), throughput), ["handle", "switch_members()"])
        serve(buffer, world)
        buffer.pause()
        with pytest.raises(InvalidArgument, match="this Buffer sleeps"):
            buffer.switch_members()
        buffer.resume()
        serve(buffer, world)
        assert buffer.agree_on_masks() == []
        buffer.prepare_members(new[rank])
        buffer.destroy()  # in the middle of a change
        with pytest.raises(InvalidArgument, match="destroyed"):
            buffer.switch_members()

    held = Holdings()
    run(world, lambda: body(0), lambda: body(1))
    held.assert_gone_back()
