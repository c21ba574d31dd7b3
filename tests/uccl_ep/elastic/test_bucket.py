"""BucketBuffer beside plain torch: each collective to the bit, several rounds, in place, in sessions; refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.uccl_ep.ranks import MIB, assert_refused, same
from uccl_ep import InvalidArgument, ThreadGroup, run_ranks
from uccl_ep.elastic.base import BufferAllocator, BufferBase
from uccl_ep.elastic.bucket import BucketBuffer

Tensor = torch.Tensor
WORLDS = [(1, 0), (3, 0), (4, 2), (5, 2)]
SIZES = [(0,), (1,), (30, 4), (1000,), (8191,)]  # of a rank's shard


def drawn(seed: int, rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(100 * seed + rank)) * 50).to(dtype)


def summed(addends: list[Tensor], scale: float) -> Tensor:
    total = addends[0].float()
    for addend in addends[1:]:
        total = total + addend.float()
    return total * scale


def on_ranks(ranks: int, body: Callable[[ThreadGroup, BucketBuffer], Any]) -> None:
    def run(group: ThreadGroup) -> None:
        buffer = BucketBuffer(group, 2 * MIB, explicitly_destroy=True)
        try:
            body(group, buffer)
            group.barrier()
        finally:
            buffer.destroy()

    run_ranks(ranks, run)


def at(buffer: BucketBuffer, offset: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor in the region."""
    assert buffer.storage is not None
    size = torch.Size(shape).numel() * dtype.itemsize
    return buffer.storage[offset : offset + size].view(dtype).view(shape)


@pytest.mark.parametrize("ranks, per_node", WORLDS)
def test_gather_in_place_and_from_elsewhere(variables: Any, ranks: int, per_node: int) -> None:
    variables(RANKS_PER_NODE=per_node)

    def body(group: ThreadGroup, buffer: BucketBuffer) -> None:
        rank = group.rank()
        for turn, dtype in enumerate((torch.float32, torch.bfloat16, torch.uint8, torch.int32)):
            for shape in SIZES:
                all_shards = [drawn(turn, r, *shape, dtype=dtype) for r in range(ranks)]
                want = torch.cat([shard.flatten() for shard in all_shards])
                whole = at(buffer, 64 * turn, (ranks, *shape), dtype)
                whole[rank] = all_shards[rank]
                handle = buffer.all_gather(whole[rank], num_sms=(0, None)[turn % 2])
                got = handle.wait()
                assert handle.num_sms == 0 and same(got, want) and got.data_ptr() == whole.data_ptr()
                target = at(buffer, MIB, (ranks * all_shards[rank].numel(),), dtype).zero_()
                got = buffer.all_gather(all_shards[rank], dsts=target).current_stream_wait(release_handle=True)
                assert same(got, want) and same(target, want)
        several = [at(buffer, 0, (ranks, 5)), at(buffer, MIB, (ranks, 3, 7), torch.bfloat16)]
        for number, tensor in enumerate(several):
            tensor[rank] = drawn(number, rank, *tensor.shape[1:], dtype=tensor.dtype)
        gathered = buffer.all_gather([tensor[rank] for tensor in several]).wait()
        for number, (got, tensor) in enumerate(zip(gathered, several, strict=True)):
            want = torch.stack([drawn(number, r, *tensor.shape[1:], dtype=tensor.dtype) for r in range(ranks)])
            assert same(got, want.flatten()) and same(tensor, want)

    on_ranks(ranks, body)


@pytest.mark.parametrize("ranks, per_node", WORLDS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_reduce_scatter_by_ascending_rank(variables: Any, ranks: int, per_node: int, precision: str) -> None:
    variables(RANKS_PER_NODE=per_node)
    rounded = torch.bfloat16 if precision == "bf16" else torch.float32

    def body(group: ThreadGroup, buffer: BucketBuffer) -> None:
        rank = group.rank()
        for turn, scale in enumerate((1.0, 0.25, -0.5, 0.0)):
            srcs = [at(buffer, 65536 * i, (ranks, *shape)) for i, shape in enumerate(SIZES)]
            given = [[drawn(turn * 9 + i, r, *src.shape) for r in range(ranks)] for i, src in enumerate(srcs)]
            for src, values in zip(srcs, given, strict=True):
                src.copy_(values[rank])
            results = buffer.reduce_scatter(srcs, precision, scale=scale, num_sms=(None, 4)[turn % 2]).wait()
            for got, src, values in zip(results, srcs, given, strict=True):
                want = summed([value[rank].to(rounded) for value in values], scale)
                assert same(got, want.flatten()) and got.data_ptr() == src[rank].data_ptr()
                others = [r for r in range(ranks) if r != rank]
                assert same(src[others], values[rank][others])

    on_ranks(ranks, body)


@pytest.mark.parametrize("ranks, per_node", WORLDS)
def test_all_reduce_gives_every_rank_the_same_bits(variables: Any, ranks: int, per_node: int) -> None:
    variables(RANKS_PER_NODE=per_node)

    def body(group: ThreadGroup, buffer: BucketBuffer) -> None:
        for turn, scale in enumerate((1.0, 2.0)):
            srcs = [at(buffer, 65536 * i, shape) for i, shape in enumerate(SIZES)]  # any size, not only N shards
            for i, src in enumerate(srcs):
                src.copy_(drawn(turn * 9 + i, group.rank(), *src.shape))
            handle = buffer.all_reduce(srcs, scale)
            assert handle.num_sms == buffer.get_theoretical_num_sms("all_reduce") > 0
            for i, (got, src) in enumerate(zip(handle.wait(), srcs, strict=True)):
                want = summed([drawn(turn * 9 + i, r, *src.shape) for r in range(ranks)], scale)
                assert same(got, want) and got.data_ptr() == src.data_ptr()

    on_ranks(ranks, body)


@pytest.mark.parametrize("ranks, per_node", WORLDS)
def test_session_takes_tensors_from_anywhere(variables: Any, ranks: int, per_node: int) -> None:
    variables(RANKS_PER_NODE=per_node)

    def body(group: ThreadGroup, buffer: BucketBuffer) -> None:
        rank = group.rank()
        for turn in range(3):
            with buffer.session() as session:
                shards, wide = (
                    [drawn(turn, r, 60, 4) for r in range(ranks)],
                    [drawn(7, r, ranks, 33) for r in range(ranks)],
                )
                anywhere = torch.empty(ranks, 60, 4)
                got = buffer.all_gather(shards[rank], dsts=anywhere).wait()
                assert got.data_ptr() == anywhere.data_ptr() and same(got, torch.stack(shards))
                inside = buffer.all_gather([shards[rank].T]).wait()[0]  # not contiguous
                assert same(inside, torch.stack([shard.T.contiguous() for shard in shards]).flatten())
                assert buffer.storage is not None and inside.data_ptr() == buffer.storage.data_ptr()
                src = wide[rank].clone()
                scattered = buffer.reduce_scatter(src, group=group).wait()
                assert same(scattered, summed([value[rank] for value in wide], 1.0)) and same(src, wide[rank])
                assert same(buffer.all_reduce(src).wait(), summed(wide, 1.0)) and same(src, wide[rank])
                one, (two, three) = session.allocate((3, 5)), session.allocate([(2,), (1, 2)], torch.bfloat16)
                assert one.shape == (3, 5) and three.dtype == torch.bfloat16 and two.data_ptr() % 64 == 0
                one.copy_(drawn(turn, rank, 3, 5))
                assert buffer.all_reduce(one).wait().data_ptr() == one.data_ptr()
                with pytest.raises(RuntimeError, match="out of storage"):
                    session.allocate((MIB,))
        assert_refused(lambda: buffer.all_reduce(torch.ones(4)), ["srcs", "session"])

    on_ranks(ranks, body)


def test_several_groups_over_one_region(variables: Any) -> None:
    variables(RANKS_PER_NODE=2)
    pairs = [ThreadGroup.create(2) for _ in range(2)]

    def run(world: ThreadGroup) -> None:
        rank = world.rank()
        pair = pairs[rank % 2][rank // 2]
        plan = BufferAllocator()
        bucket = plan.allocate((3, 5), torch.float32)
        buffer = BucketBuffer([world, pair], plan, explicitly_destroy=True)
        assert isinstance(buffer, BufferBase) and buffer.contexts is not None
        assert [context.get_physical_domain_size() for context in buffer.contexts] == [(2, 2), (1, 2)]
        for group, members in ((pair, [rank % 2, rank % 2 + 2]), (world, range(4))):
            bucket.copy_(drawn(4, rank, 3, 5))
            assert same(
                buffer.all_reduce(bucket, group=group).wait(), summed([drawn(4, r, 3, 5) for r in members], 1.0)
            )
        buffer.barrier(group=pair)
        assert_refused(lambda: buffer.all_reduce(bucket), ["group"])
        with buffer.session() as session:
            session.allocate((1,), group=pair)
            assert_refused(lambda: buffer.all_reduce(bucket, group=world), ["group"])
            with pytest.raises(InvalidArgument, match="nested"):
                buffer.session().__enter__()
        world.barrier()
        buffer.destroy()
        assert buffer.contexts is buffer.storage is buffer.runtime is None
        with pytest.raises(InvalidArgument, match="destroyed"):
            buffer.all_reduce(bucket, group=pair)
        buffer.destroy()

    run_ranks(4, run)


def test_what_is_refused_names_the_argument(variables: Any, capsys: Any) -> None:
    variables()

    def body(group: ThreadGroup, buffer: BucketBuffer) -> None:
        inside, outer = at(buffer, 0, (4,)), at(buffer, 0 if group.rank() else 2 * MIB - 16, (4,))
        for call, words in (
            (lambda: buffer.all_gather(inside, num_sms=4), "num_sms"),
            (lambda: buffer.all_gather(torch.ones(4)), "srcs"),
            (lambda: buffer.all_gather(outer), "srcs"),
            (lambda: buffer.all_gather(torch.ones(4), dsts=torch.ones(8)), "dsts"),
            (lambda: buffer.all_gather(torch.ones(4), dsts=inside), "dsts"),
            (lambda: buffer.all_gather(torch.ones(4), dsts=[]), "dsts"),
            (lambda: buffer.all_gather([]), "srcs"),
            (lambda: buffer.all_gather(["x"]), "srcs"),
            (lambda: buffer.reduce_scatter(at(buffer, 0, (3,))), "srcs"),
            (lambda: buffer.reduce_scatter(at(buffer, 0, (4,), torch.bfloat16)), "srcs"),
            (lambda: buffer.reduce_scatter(inside, "fp8"), "comm_precision"),
            (lambda: buffer.all_reduce(inside, num_sms=0), "num_sms"),
            (lambda: buffer.all_reduce(inside, group=object()), "group"),
            (lambda: buffer.get_theoretical_num_sms("broadcast"), "op"),
        ):
            assert_refused(call, [words])
        if group.rank() == 0:
            buffer.print_memory_usage()

    on_ranks(2, body)
    assert "region of the caller's tensors: 2 MiB" in capsys.readouterr().out
    group = ThreadGroup.create(1)[0]
    for bad in (0, 5, "x"):
        with pytest.raises(InvalidArgument, match="allocation_plan_or_num_bytes"):
            BucketBuffer(group, bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="group"):
        BucketBuffer([], 2 * MIB)
    with pytest.raises(InvalidArgument, match="explicitly_destroy"):
        BucketBuffer(group, 2 * MIB).destroy()
