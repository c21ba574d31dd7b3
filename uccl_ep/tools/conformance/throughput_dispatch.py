"""Checks of get_dispatch_layout and dispatch: shapes, order, padding, cached calls, events, refusals."""

from __future__ import annotations

from typing import Any

import torch

from uccl_ep import reference
from uccl_ep.reference import RandomCase, ThroughputInput, ThroughputReceived
from uccl_ep.tools.conformance.registry import Skipped, check
from uccl_ep.tools.conformance.world import MAX_TOKENS, RANKS_OF_A_NODE, World

Tensor = torch.Tensor
LAYOUT = ("num_tokens_per_rank", "num_tokens_per_rdma_rank", "num_tokens_per_expert", "is_token_in_rank")


def layout_of(world: World, case: RandomCase, rank: int) -> reference.Layout:
    """The reference's layout of one rank."""
    nodes = None if world.one_node else world.ranks_per_node
    return reference.dispatch_layout(case.topk_idx[rank], world.num_experts, world.size, nodes)


def expected(
    world: World, case: RandomCase, alignment: int = 1, worst: int = 0, topk: bool = True, x: Any = None
) -> list[ThroughputReceived]:
    """The reference's dispatch of a case, for all ranks; `x`: (data, scales) of each rank instead of its own rows."""
    inputs = []
    for rank in range(world.size):
        data, scales = (case.x[rank], None) if x is None else x[rank]
        ids, weights = (case.topk_idx[rank], case.topk_weights[rank]) if topk else (None, None)
        inputs.append(ThroughputInput(data, layout_of(world, case, rank).is_token_in_rank, ids, weights, scales))
    return reference.throughput_dispatch(inputs, world.num_experts, alignment, worst)


def layout_arguments(world: World, buffer: Any, case: RandomCase) -> dict[str, Any]:
    """What get_dispatch_layout returns for this rank, under dispatch's names."""
    results = buffer.get_dispatch_layout(world.put(case.topk_idx[world.rank]), world.num_experts)
    return dict(zip(LAYOUT, results[:4], strict=True))


def topk_arguments(world: World, case: RandomCase) -> dict[str, Tensor]:
    """This rank's ids and weights, under dispatch's names."""
    ids, weights = case.topk_idx[world.rank], case.topk_weights[world.rank]
    return {"topk_idx": world.put(ids), "topk_weights": world.put(weights)}


def dispatch(world: World, case: RandomCase, **arguments: Any) -> tuple[Any, ...]:
    """A plain dispatch of this rank's tokens; `arguments` replace or add to it. Collective."""
    buffer = world.buffer("throughput")
    given = {"x": world.put(case.x[world.rank]), **layout_arguments(world, buffer, case), **topk_arguments(world, case)}
    results = tuple(buffer.dispatch(**{**given, **arguments}))
    world.equal("values that dispatch returns", len(results), 6)
    return results


def compare(world: World, got: tuple[Any, ...], wanted: ThroughputReceived) -> None:
    """recv_x (or data and scales), ids, weights and counts of a dispatch that counted."""
    data, scales = got[0] if isinstance(got[0], tuple) else (got[0], None)
    world.equal("recv_x", data, wanted.recv_x)
    if wanted.recv_scales is not None:
        world.equal("scales", scales, wanted.recv_scales)
        world.expect(scales is None or scales.is_contiguous(), "scales are not row-major contiguous")
    if wanted.recv_topk_idx is None:
        world.expect(got[1] is None and got[2] is None, "recv_topk_idx or recv_topk_weights without topk_idx")
        return
    world.equal("recv_topk_idx", got[1], wanted.recv_topk_idx)
    world.equal("recv_topk_weights", got[2], wanted.recv_topk_weights)
    world.equal("num_recv_tokens_per_expert_list", got[3], wanted.num_recv_tokens_per_expert_list)


def dispatch_and_compare(world: World, traffic: str, **options: Any) -> None:
    """One dispatch of a kind of traffic against the reference."""
    case = world.case(traffic=traffic, **options)
    compare(world, dispatch(world, case), expected(world, case)[world.rank])


@check("A.5")
def throughput_layout(world: World) -> None:
    """get_dispatch_layout counts tokens per rank, per node, per expert (each choice), and says who gets which.

    Part A.5. -1 is nobody; the second result is None on one node.
    """
    case = world.case()
    buffer = world.buffer("throughput")
    results = buffer.get_dispatch_layout(world.put(case.topk_idx[world.rank]), world.num_experts)
    wanted = layout_of(world, case, world.rank)
    for name, got, value in zip(LAYOUT, results, wanted, strict=False):
        world.equal(name, got, value)
    world.expect(results[4].event is None, "the event of a synchronous layout is not None")


@check("A.5")
def throughput_layout_ids_out_of_range(world: World) -> None:
    """Ids of num_experts and above name no expert: upstream ignores them. A refusal is as good. Part A.5."""
    case = world.case(traffic="out_of_range")
    try:
        got = layout_arguments(world, world.buffer("throughput"), case)
    except (AssertionError, RuntimeError, ValueError):
        return
    for name, value in zip(LAYOUT, layout_of(world, case, world.rank), strict=False):
        world.equal(name, got[name], value)


@check("A.5")
def throughput_dispatch_rows(world: World) -> None:
    """Rows come in order of source rank, then token; ids are local or -1; weights are 0 where the id is -1.

    Part A.5, and D.6: Megatron computes wrong probabilities otherwise.
    """
    dispatch_and_compare(world, "some_unused")


@check("A.5")
def throughput_dispatch_one_hot_expert(world: World) -> None:
    """One expert that everybody wants gets every token once. Part A.5."""
    dispatch_and_compare(world, "hot_expert")


@check("A.5")
def throughput_dispatch_duplicates(world: World) -> None:
    """A token that names an expert twice is sent once and counted twice. Part A.5."""
    dispatch_and_compare(world, "duplicates")


@check("A.5")
def throughput_dispatch_all_unused(world: World) -> None:
    """Tokens whose ids are all -1 go nowhere; recv_x has no rows. Part A.5."""
    dispatch_and_compare(world, "all_unused")


@check("A.5")
def throughput_dispatch_zero_tokens(world: World) -> None:
    """Ranks without tokens take part: first all of them, then every other one. Part A.5."""
    dispatch_and_compare(world, "no_tokens")
    case = world.case(1)
    for rank in range(0, world.size, 2):
        for tensors in (case.x, case.topk_idx, case.topk_weights):
            tensors[rank] = tensors[rank][:0]
    compare(world, dispatch(world, case), expected(world, case)[world.rank])


@check("A.5")
def throughput_dispatch_one_token(world: World) -> None:
    """T = 1 on every rank. Part A.5."""
    case = one_token(world)
    compare(world, dispatch(world, case), expected(world, case)[world.rank])


def one_token(world: World) -> RandomCase:
    """A case with exactly one token a rank."""
    case = world.case()
    for rank in range(world.size):
        case.x[rank] = world.rows(20 + rank, 1, case.shape.hidden)
        case.topk_idx[rank] = torch.arange(case.shape.num_topk).unsqueeze(0) * 2 % world.num_experts + rank % 2
        case.topk_idx[rank] %= world.num_experts
        case.topk_weights[rank] = torch.full((1, case.shape.num_topk), 0.25 + rank)
    return case


@check("A.5")
def throughput_dispatch_alignment(world: World) -> None:
    """expert_alignment rounds the list of counts up and pads no rows, also for sizes that nothing divides. Part A.5."""
    case = world.case()
    for alignment in (7, 128):
        got = dispatch(world, case, expert_alignment=alignment)
        compare(world, got, expected(world, case, alignment)[world.rank])


@check("B")
def throughput_dispatch_fp8(world: World) -> None:
    """FP8 rows and their scales arrive to the byte: f32 row-major, f32 column-major, packed int32. Parts A.5 and B.1.

    The cast is the caller's; received scales are row-major whatever was sent.
    """
    case = world.case()
    for packed in (False, True):
        casts = [reference.cast_fp8(x, round_scale=packed, use_ue8m0=packed) for x in case.x]
        data, scales = (world.put(t) for t in casts[world.rank])
        wanted = expected(world, case, x=casts)[world.rank]
        compare(world, dispatch(world, case, x=(data, scales)), wanted)
        compare(world, dispatch(world, case, x=(data, scales.T.contiguous().T)), wanted)


@check("A.5")
def throughput_dispatch_without_topk(world: World) -> None:
    """Without topk_idx and topk_weights rows come all the same; ids and weights are None. Part A.5."""
    case = world.case()
    got = dispatch(world, case, topk_idx=None, topk_weights=None)
    compare(world, got, expected(world, case, topk=False)[world.rank])


@check("A.5")
def throughput_dispatch_worst_tokens(world: World) -> None:
    """num_worst_tokens: that many rows, -1 in the ids beyond the real ones, an empty list. Part A.5."""
    if world.size > RANKS_OF_A_NODE and not world.one_node:
        raise Skipped("between nodes upstream's last V1 release refuses num_worst_tokens")
    case, worst = world.case(), MAX_TOKENS * world.size
    got, wanted = dispatch(world, case, num_worst_tokens=worst), expected(world, case, worst=worst)[world.rank]
    world.equal("rows of recv_x", got[0].shape[0], worst)
    world.equal("recv_x, real rows", got[0][: wanted.num_rows], wanted.recv_x[: wanted.num_rows])
    world.equal("recv_topk_idx", got[1], wanted.recv_topk_idx)
    real = None if wanted.recv_topk_weights is None else wanted.recv_topk_weights[: wanted.num_rows]
    world.equal("recv_topk_weights, real rows", got[2][: wanted.num_rows], real)
    world.equal("num_recv_tokens_per_expert_list", got[3], [])


@check("A.5")
def throughput_dispatch_cached(world: World) -> None:
    """With a handle: 6 values again, None between recv_x and the event, rows as before. Parts A.5 and D.6."""
    case, other = world.case(), world.case()
    handle = dispatch(world, case)[4]
    for rank, x in enumerate(other.x):
        other.x[rank] = world.rows(30 + rank, *x.shape)
    again = tuple(world.buffer("throughput").dispatch(world.put(other.x[world.rank]), handle=handle))
    world.equal("values that a cached dispatch returns", len(again), 6)
    world.equal("recv_x", again[0], expected(world, other)[world.rank].recv_x)
    world.equal("the values between", again[1:5], (None, None, None, None))
    world.expect(again[-1].event is None, "the event of a synchronous cached dispatch is not None")


@check("A.5")
def throughput_handle(world: World) -> None:
    """The handle's tables: on one node 6 with rows per source first, else 10 with rows per rank at -4. Part A.5."""
    case = world.case()
    handle, received = dispatch(world, case)[4], expected(world, case)
    counts = torch.stack(
        [torch.bincount(r.src_rank.long(), minlength=world.size).cumsum(0).int() for r in received], dim=1
    )  # [i][r]: tokens from ranks 0..i to r
    own = received[world.rank]
    if world.one_node:
        world.equal("length of the handle", len(handle), 6)
        world.equal("handle[0], rank_prefix_matrix", handle[0], counts)
        world.equal("handle[3], recv_src_idx", handle[3], own.src_token)
        world.equal("handle[4], is_token_in_rank", handle[4], layout_of(world, case, world.rank).is_token_in_rank)
    else:
        world.equal("length of the handle", len(handle), 10)
        world.equal("handle[-4], rows by source rank", handle[-4], counts[:, world.rank].contiguous())
        world.equal("handle[0], is_token_in_rank", handle[0], layout_of(world, case, world.rank).is_token_in_rank)


@check("A.5")
def throughput_dispatch_repeats(world: World) -> None:
    """Rows do not depend on the Config, and come in the same order every time. Part A.5."""
    case = world.case()
    wanted = expected(world, case)[world.rank]
    tables = world.module.Buffer.get_dispatch_config(world.size), world.module.Config(8, 4, 256, 6, 128), None
    for config in tables:
        compare(world, dispatch(world, case, config=config), wanted)


@check("A.7")
def throughput_events(world: World) -> None:
    """Synchronous calls have `.event` None; asynchronous ones an event after which the rows are there. Parts A.5, A.7.

    The layout's event is the dispatch's previous_event, as SGLang and Megatron chain them.
    """
    case, buffer = world.case(), world.buffer("throughput")
    world.expect(dispatch(world, case)[5].event is None, "the event of a synchronous dispatch is not None")
    ids = world.put(case.topk_idx[world.rank])
    captured = world.module.EventOverlap(world.module.EventHandle())
    *layout, event = buffer.get_dispatch_layout(
        ids, world.num_experts, previous_event=captured, async_finish=True, allocate_on_comm_stream=True
    )
    world.expect(event.event is not None, "the event of an asynchronous layout is None")
    chained = dict(zip(LAYOUT, layout, strict=True))
    got = dispatch(world, case, **chained, previous_event=event, async_finish=True, allocate_on_comm_stream=True)
    if world.expect(got[5].event is not None, "the event of an asynchronous dispatch is None"):
        got[5].current_stream_wait()
        compare(world, got, expected(world, case)[world.rank])


@check("A.5")
def throughput_refusals(world: World) -> None:
    """What contradicts itself is refused before anything is sent; the next call works. Part A.5."""
    case, buffer = world.case(), world.buffer("throughput")
    handle = dispatch(world, case)[4]
    x, topk = world.put(case.x[world.rank]), topk_arguments(world, case)
    layout = layout_arguments(world, buffer, case)
    world.refused("a dispatch without layout", lambda: buffer.dispatch(x, **topk))
    world.refused("topk_idx without weights", lambda: buffer.dispatch(x, **layout, topk_idx=topk["topk_idx"]))
    world.refused("a cached dispatch with topk_idx", lambda: buffer.dispatch(x, handle=handle, **topk))
    world.refused("1-D x", lambda: buffer.dispatch(x.flatten(), **layout, **topk))
    world.refused(
        "allocate_on_comm_stream without previous_event",
        lambda: buffer.dispatch(x, **layout, **topk, async_finish=True, allocate_on_comm_stream=True),
    )
    compare(world, dispatch(world, case), expected(world, case)[world.rank])
