"""The throughput half below the calls: handles as DeepEP lays them out, streams cut to fit."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.uccl_ep.gate import Gate
from tests.uccl_ep.ranks import MIB, assert_refused, case, layout_arguments, same, throughput
from uccl_ep import Buffer, Config, InvalidArgument, NotSupported, ThreadGroup, _native, reference, run_ranks
from uccl_ep.throughput.handle import ThroughputHandle

Tensor = torch.Tensor


def dispatched(per_node: int, ranks: int, c: Any, config: Config | None = None) -> list[tuple[Any, ...]]:
    """(recv_x, handle tensors, routing, layout) of every rank."""

    def body(group: ThreadGroup) -> tuple[Any, ...]:
        rank = group.rank()
        with throughput(group) as buffer:
            layout = layout_arguments(buffer, c.topk_idx[rank], c.shape.num_experts)
            x, _, _, _, handle, _ = buffer.dispatch(c.x[rank], config=config, **layout)
            assert isinstance(handle, tuple) and isinstance(handle, ThroughputHandle)
            return x, tuple(handle), handle.routing, layout

    return run_ranks(ranks, body)


def tokens_of(channel: int, channels: int, tokens: int) -> slice:
    """Contiguous tokens of a channel, as DeepEP cuts them."""
    each = -(-tokens // channels)
    return slice(min(channel * each, tokens), min((channel + 1) * each, tokens))


def test_throughput_handle_on_one_node_is_deepeps_six(variables: Any) -> None:
    variables(HOST_BLOCKS=4)
    ranks, channels = 3, 4
    c = case(31, "uniform", num_ranks=ranks, num_experts=6, hidden=64, max_tokens=23)
    results = dispatched(0, ranks, c, Config(2 * channels))
    in_rank = [layout["is_token_in_rank"] for *_, layout in results]
    sent = torch.stack([m.sum(0) for m in in_rank]).int()  # [source, destination]
    for rank, (x, handle, _, _) in enumerate(results):
        assert len(handle) == 6
        rank_prefix, channel_prefix, recv_channel_prefix, src_idx, mask, head = handle
        assert same(rank_prefix, sent.cumsum(0).int())
        assert x.shape[0] == int(rank_prefix[-1, rank])
        assert channel_prefix.shape == recv_channel_prefix.shape == (ranks, channels)
        for peer in range(ranks):
            mine, its = in_rank[rank][:, peer], in_rank[peer][:, rank]
            ends = [tokens_of(ch, channels, mine.numel()).stop for ch in range(channels)]
            assert channel_prefix[peer].tolist() == [int(mine[:end].sum()) for end in ends]
            starts = [tokens_of(ch, channels, its.numel()).start for ch in range(channels)]
            assert recv_channel_prefix[peer].tolist() == [int(its[:start].sum()) for start in starts]
        expected = torch.cat([m[:, rank].nonzero().flatten() for m in in_rank]).int()
        assert same(src_idx, expected)
        assert same(mask, in_rank[rank])
        assert head.dtype == torch.int32 and head.shape == mask.shape
        for peer in range(ranks):
            assert head[:, peer][mask[:, peer]].tolist() == list(range(int(sent[rank, peer])))
            assert (head[:, peer][~mask[:, peer]] == -1).all()


def test_throughput_handle_on_several_nodes_is_deepeps_ten(variables: Any) -> None:
    variables(RANKS_PER_NODE=2, TRANSPORT="loopback")
    ranks, nodes = 4, 2
    c = case(32, "uniform", num_ranks=ranks, num_experts=8, hidden=64, max_tokens=23)
    results = dispatched(2, ranks, c)
    in_rank = [layout["is_token_in_rank"] for *_, layout in results]
    for rank, (x, handle, routing, _) in enumerate(results):
        assert len(handle) == 10
        channels = routing.channels
        mask, node_prefix, channel_prefix, hosted, hosted_sum, recv_channel, rank_sum, meta, head, _ = handle
        assert same(mask, in_rank[rank])
        assert node_prefix.shape == (nodes, channels) and channel_prefix.shape == (ranks, channels)
        for node in range(nodes):
            any_rank = in_rank[rank][:, 2 * node : 2 * node + 2].any(1)
            assert int(node_prefix[node, -1]) == int(any_rank.sum())
        assert channel_prefix[:, -1].tolist() == in_rank[rank].sum(0).tolist()
        received = [int(m[:, rank].sum()) for m in in_rank]
        assert rank_sum.tolist() == torch.tensor(received).cumsum(0).tolist()  # tests of DeepEP index handle[-4]
        assert handle[-4] is rank_sum and x.shape[0] == sum(received)
        assert recv_channel.shape == (ranks, channels) and not recv_channel[:, 0].any()
        assert meta.shape == (x.shape[0], 8) and meta.dtype == torch.uint8
        source_token = meta.view(torch.int32)
        expected = [(s, t) for s, m in enumerate(in_rank) for t in m[:, rank].nonzero().flatten().tolist()]
        assert [tuple(pair) for pair in source_token.tolist()] == expected
        assert int(hosted_sum[-1]) == int(hosted[:, -1].sum())
        assert head.shape == (in_rank[rank].shape[0], ranks)


def test_throughput_the_smallest_memory_is_the_one_a_refusal_names(variables: Any) -> None:
    variables(RANKS_PER_NODE=2, TRANSPORT="loopback")
    c = case(33, "uniform", num_ranks=4, num_experts=8, hidden=512, max_tokens=50)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        needed = 0
        with throughput(group, 128) as buffer:
            layout = layout_arguments(buffer, c.topk_idx[rank], 8)
            with pytest.raises(InvalidArgument) as caught:
                buffer.dispatch(c.x[rank], **layout)
            for word in (
                "num_nvl_bytes must be at least",
                "; got 128.",
                "rows of 1",
                "4 ranks and 2 node(s)",
                "get_nvl_buffer_size",
            ):
                assert word in str(caught.value)
            needed = int(str(caught.value).split("at least ")[1].split()[0])
        with throughput(group, needed - 128) as buffer, pytest.raises(InvalidArgument, match="at least"):
            buffer.dispatch(c.x[rank], **layout)
        with throughput(group, needed) as buffer:
            x, *_, handle, _ = buffer.dispatch(c.x[rank], **layout)
            assert handle.routing.channels == 1  # what one channel needs, and no more than one fits
            combined, _, _ = buffer.combine(x, handle)
            copies = layout["is_token_in_rank"].sum(1, keepdim=True)
            nodes = torch.stack([layout["is_token_in_rank"][:, i : i + 2].sum(1) for i in (0, 2)], 1)
            assert combined.shape == c.x[rank].shape and int(copies.max()) <= int(nodes.sum(1).max())

    run_ranks(4, body)


@pytest.mark.parametrize("num_sms, blocks, wanted", [(2, 0, 1), (20, 0, 2), (8, 4, 4), (20, 4, 4)])
def test_throughput_channels_follow_config_and_device(variables: Any, num_sms: int, blocks: int, wanted: int) -> None:
    variables(HOST_BLOCKS=blocks)
    c = case(34, "uniform", num_ranks=2, hidden=64)
    for *_, routing, _ in dispatched(0, 2, c, Config(num_sms)):
        assert routing.channels == wanted


def test_throughput_rows_of_changing_size_share_the_memory(variables: Any) -> None:
    """Streams are cut anew for every row size; what was sent in the old cut must have been read by then."""
    variables(RANKS_PER_NODE=1, TRANSPORT="loopback", SHUFFLE_SEED=3, HOST_BLOCKS=3)
    ranks = 3
    cases = [
        case(60 + turn, "uniform", num_ranks=ranks, num_experts=6, hidden=64 << turn % 4, max_tokens=60)
        for turn in range(12)
    ]

    def body(group: ThreadGroup) -> list[Tensor]:
        rank, out = group.rank(), []
        with throughput(group, MIB // 2) as buffer:
            for turn, c in enumerate(cases):
                layout = layout_arguments(buffer, c.topk_idx[rank], 6)
                x, *_, handle, _ = buffer.dispatch(c.x[rank], config=Config(2 + 2 * (turn % 3)), **layout)
                combined, _, _ = buffer.combine(x, handle)
                out.append((x, combined))
        return out  # type: ignore[return-value]

    results = run_ranks(ranks, body)
    for turn, c in enumerate(cases):
        layouts = [reference.dispatch_layout(ids, 6, ranks, 1) for ids in c.topk_idx]
        inputs = [reference.ThroughputInput(x, la.is_token_in_rank) for x, la in zip(c.x, layouts, strict=True)]
        wanted = reference.throughput_dispatch(inputs, 6)
        sums, _ = reference.throughput_combine([w.recv_x for w in wanted], wanted, ranks_per_node=1)
        for rank in range(ranks):
            assert same(results[rank][turn][0], wanted[rank].recv_x)
            assert same(results[rank][turn][1], sums[rank])


def test_throughput_rows_are_not_overwritten_by_a_new_cut_before_a_late_rank_has_read_them(variables: Any) -> None:
    """Rank 1's tokens go to rank 0 alone, so rank 0 waits for nobody when it gives them back, twice, in two sizes. The
    second call's chunk of small rows would lie in the middle of the first call's large rows."""
    ids = torch.zeros(24, 1, dtype=torch.int64)  # expert 0 is rank 0's
    tokens = [torch.randn(24, h, generator=torch.Generator().manual_seed(h)).bfloat16() for h in (65536, 8)]

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        with throughput(group, 12 * MIB) as buffer:
            own = ids[: 24 * rank]
            sent = [buffer.dispatch(x[: 24 * rank], **layout_arguments(buffer, own, 2)) for x in tokens]
            group.barrier()
            gate = Gate(buffer._device) if rank == 1 else None
            back = [buffer.combine(s[0], s[4], async_finish=True) for s in sent]
            group.barrier()
            time.sleep(0.1)
            if gate:
                gate.open()
            for (combined, _, event), x in zip(back, tokens, strict=True):
                event.current_stream_wait()
                assert torch.equal(combined, x[: 24 * rank])

    run_ranks(2, body)


def test_throughput_cached_rows_larger_than_the_handles_cut(variables: Any) -> None:
    variables(HOST_BLOCKS=8)
    x, ids = torch.zeros(4, 64, dtype=torch.bfloat16), torch.zeros(4, 1, dtype=torch.int64)
    with throughput(ThreadGroup.create(1)[0], 64 * 1024) as buffer:
        *_, handle, _ = buffer.dispatch(x, **layout_arguments(buffer, ids, 1), config=Config(16))
        assert handle.routing.channels == 8
        wide = torch.zeros(4, 2048, dtype=torch.bfloat16)
        with pytest.raises(InvalidArgument, match="fewer channels than the handle's; raise num_nvl_bytes"):
            buffer.dispatch(wide, handle=handle)
        assert_refused(
            lambda: buffer.dispatch(torch.zeros(4, 1 << 17, dtype=torch.bfloat16), handle=handle),
            ["num_nvl_bytes=65536", "at least", "rows of 262160 bytes"],
        )
        with pytest.raises(InvalidArgument, match="fewer channels than the handle's"):
            buffer.combine(wide, handle)
        buffer.dispatch(x, handle=handle)


def test_throughput_combine_over_many_nodes_needs_topk(variables: Any) -> None:
    """A token's sum over more nodes than a combine keeps partial sums for is refused before anything is sent."""
    from uccl_ep.throughput.launch import Throughput

    with throughput(ThreadGroup.create(1)[0]) as buffer:
        x, ids = torch.zeros(2, 64, dtype=torch.bfloat16), torch.zeros(2, 1, dtype=torch.int64)
        *_, handle, _ = buffer.dispatch(x, **layout_arguments(buffer, ids, 1))

        class Topology:
            num_cells, cells_are = _native.MAX_PARTIALS + 2, "nodes"

        class Session:
            topology = Topology()

        throughput_half = Throughput.__new__(Throughput)
        throughput_half._session, throughput_half._device = Session(), buffer._device  # type: ignore[assignment]
        with pytest.raises(NotSupported, match=rf"combine over {_native.MAX_PARTIALS + 2} nodes without topk_idx"):
            throughput_half.combine(x, None, (None, None), None, handle.routing)


def test_throughput_rank_prefix_counts_what_worst_case_rows_hide(variables: Any) -> None:
    x, ids = torch.ones(5, 64, dtype=torch.bfloat16), torch.zeros(5, 1, dtype=torch.int64)
    with throughput(ThreadGroup.create(1)[0]) as buffer:
        recv, recv_ids, weights, counts, handle, _ = buffer.dispatch(
            x, topk_idx=ids, topk_weights=torch.ones(5, 1), num_worst_tokens=9, **layout_arguments(buffer, ids, 1)
        )
        assert recv.shape == (9, 64) and counts == [] and recv_ids is not None and weights is not None
        assert recv_ids.flatten().tolist() == [0] * 5 + [-1] * 4
        assert int(handle[0][0, 0]) == 5
        assert buffer.combine(recv, handle)[0].shape == (5, 64)


@pytest.mark.parametrize(("ranks", "per_node"), [(2, 0), (4, 0), (4, 2)])
def test_throughput_rings_of_one_node_stay_in_a_cpus_caches(variables: Any, ranks: int, per_node: int) -> None:
    variables(RANKS_PER_NODE=per_node, TRANSPORT="loopback")

    def body(group: ThreadGroup) -> list[int]:
        with throughput(group, 256 * MIB) as buffer:
            cut = buffer._life.throughput._throughput._cut
            rings = ranks, ranks * (ranks - 1)  # of a dispatch, and of a combine
            return [cut(2, row_bytes, n).unit_bytes for row_bytes in (14_352, 300_000) for n in rings]

    for dispatch, combine, *huge in run_ranks(ranks, body):
        small = 2 * MIB
        assert (dispatch <= small) == (per_node == 0)
        assert (combine <= small) == (ranks == 2)
        assert min(huge) > small  # rows of which too few would fit


@given(
    tokens=st.integers(0, 80), topk=st.integers(1, 8), local=st.integers(1, 9), seed=st.integers(0, 2**16),
    wide=st.booleans(),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_throughput_layout_is_the_references(tokens: int, topk: int, local: int, seed: int, wide: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(-3, local + 3, (tokens, topk), generator=generator)
    wanted = reference.dispatch_layout(ids, local, 1)
    routed = torch.where((ids >= 0) & (ids < local), ids, -1)
    if bool((ids != routed).any()):
        assert_refused(lambda: ALONE[0].get_dispatch_layout(ids if wide else ids.int(), local), ["topk_idx=", "first"])
    got = ALONE[0].get_dispatch_layout(routed if wide else routed.int(), local)
    for mine, theirs in zip(got[:4], wanted[:4], strict=True):
        assert (mine is None) == (theirs is None) and (mine is None or same(mine, theirs))


ALONE: list[Buffer] = []


@pytest.fixture(autouse=True, scope="module")
def _one_buffer_for_the_layouts() -> Any:
    ALONE.append(Buffer(ThreadGroup.create(1)[0], MIB))
    yield
    ALONE.pop().destroy()
