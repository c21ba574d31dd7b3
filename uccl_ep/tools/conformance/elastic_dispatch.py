"""Checks of V2's ElasticBuffer and its dispatch: names, layouts, padding, handles, cached calls, refusals."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from uccl_ep import reference
from uccl_ep.tools.conformance.elastic_cases import (
    arrivals,
    busy_case,
    compare,
    compare_expanded,
    dispatch,
    elastic,
    fill_with_one_token,
    offered,
    split,
    worst_rows,
)
from uccl_ep.tools.conformance.registry import check
from uccl_ep.tools.conformance.world import HIDDEN, LOCAL_EXPERTS, MAX_TOKENS, World, bits

Tensor = torch.Tensor
_GRANULE = 2 << 20  # bytes

# method: the keywords of the contract (parts C.1 to C.3)
KEYWORDS = {
    "__init__": "group num_bytes num_cpu_bytes num_max_tokens_per_rank hidden num_topk use_fp8_dispatch deterministic "
    "allow_hybrid_mode allow_multiple_reduction prefer_overlap_with_compute sl_idx num_allocated_qps "
    "num_cpu_timeout_secs num_gpu_timeout_secs explicitly_destroy",
    "get_buffer_size_hint": "group num_max_tokens_per_rank hidden num_topk use_fp8_dispatch allow_hybrid_mode "
    "allow_multiple_reduction",
    "get_theoretical_num_sms": "num_experts num_topk",
    "dispatch": "x topk_idx topk_weights cumulative_local_expert_recv_stats num_experts num_max_tokens_per_rank "
    "expert_alignment num_sms num_qps previous_event async_with_compute_stream allocate_on_comm_stream handle "
    "do_handle_copy do_cpu_sync do_expand do_zero_padding use_tma_aligned_col_major_sf",
    "combine": "x handle topk_weights bias num_sms num_qps previous_event async_with_compute_stream "
    "allocate_on_comm_stream",
}


@check("C.1", collective=False)
def elastic_keywords(world: World) -> None:
    """ElasticBuffer's constructor, size hint, dispatch and combine take every keyword.

    Parts C.1 to C.3; vLLM, SGLang and TorchTitan pass them.
    """
    for method, names in KEYWORDS.items():
        function = getattr(offered(world), method, None)
        if world.expect(callable(function), f"ElasticBuffer.{method} is missing"):
            parameters = inspect.signature(function).parameters  # type: ignore[arg-type]
            missing = [name for name in names.split() if name not in parameters]
            world.expect(not missing, f"ElasticBuffer.{method} does not take {', '.join(missing)}")


@check("C.1")
def elastic_buffer_attributes(world: World) -> None:
    """Ranks, sizes and domains can be read; num_bytes and the hint are multiples of 2 MiB; destroy() may be repeated.

    Part C.1.
    """
    cls = offered(world)
    hint = cls.get_buffer_size_hint(world.group, MAX_TOKENS, HIDDEN, num_topk=4)
    world.expect(hint > 0 and hint % _GRANULE == 0, f"get_buffer_size_hint gives {hint}")
    buffer = world.new_buffer("elastic", num_bytes=hint)
    world.equal("num_bytes", buffer.num_bytes, hint)
    world.equal("rank_idx and num_ranks", (buffer.rank_idx, buffer.num_ranks), (world.rank, world.size))
    world.equal("num_max_tokens_per_rank", buffer.num_max_tokens_per_rank, MAX_TOKENS)
    world.equal("ranks of the logical domains", buffer.num_scaleout_ranks * buffer.num_scaleup_ranks, world.size)
    world.equal("ranks of the physical domains", tuple(buffer.get_physical_domain_size()),
                (buffer.num_rdma_ranks, buffer.num_nvlink_ranks))  # fmt: skip
    sms = buffer.get_theoretical_num_sms(num_experts=world.num_experts, num_topk=2)
    world.expect(sms >= 4 and sms % 2 == 0, f"get_theoretical_num_sms gives {sms}: even and at least 4 is wanted")
    world.expect(isinstance(buffer.capture(), world.module.EventHandle), "capture() gives no bare EventHandle")
    world.gather(None)
    for _ in range(2):
        buffer.destroy()
    world.expect(buffer.runtime is None, "runtime is not None after destroy()")


@check("C.2")
def elastic_dispatch_rows(world: World) -> None:
    """Without expansion: each token once, local ids or -1, weights as the source had them, 5 values. Part C.2."""
    for turn, traffic in enumerate(("some_unused", "uniform", "hot_expert")):
        case = busy_case(world, turn, traffic)
        got, wanted = dispatch(world, case), arrivals(world, case)[world.rank]
        world.equal("rows of recv_x", got[0].shape[0], wanted.tokens.num_rows)
        compare(world, got, wanted)
        world.expect(got[4].event is None, "the event of a synchronous dispatch is not None")


@check("C.2")
def elastic_dispatch_without_weights(world: World) -> None:
    """Without topk_weights recv_topk_weights is None. Part C.2."""
    case = busy_case(world)
    for expand in (False, True):
        got = dispatch(world, case, topk_weights=None, do_expand=expand)
        world.expect(got[2] is None, "recv_topk_weights without topk_weights is not None")


@check("C.4")
def elastic_handle(world: World) -> None:
    """The handle's fields: what the call was, rows by source, rows by expert with and without alignment.

    Part C.4. Not expanded, rows by expert are inclusive sums of rounded counts; expanded, where real rows end.
    """
    case = busy_case(world)
    wanted = arrivals(world, case)[world.rank]
    n = wanted.tokens.num_rows
    by_source = torch.bincount(wanted.tokens.src_rank.long(), minlength=world.size).cumsum(0).int()
    for expand, alignment in ((False, 1), (False, 128), (True, 1), (True, 8)):
        handle = dispatch(world, case, do_expand=expand, expert_alignment=alignment)[3]
        said = (handle.do_expand, handle.num_experts, handle.expert_alignment, handle.num_max_tokens_per_rank)
        world.equal("arguments that it keeps", said, (expand, world.num_experts, alignment, MAX_TOKENS))
        world.equal("num_recv_tokens", handle.num_recv_tokens, n)
        world.equal(
            "num_recv_tokens_per_expert_list", handle.num_recv_tokens_per_expert_list, wanted.aligned(alignment)
        )
        world.equal("topk_idx", handle.topk_idx, case.topk_idx[world.rank])
        ends = torch.tensor(wanted.aligned(alignment)).cumsum(0)
        real = ends - torch.tensor(wanted.aligned(alignment)) + torch.tensor(wanted.counts)
        prefix = handle.psum_num_recv_tokens_per_expert
        world.equal("psum_num_recv_tokens_per_expert", prefix, (real if expand else ends).int())
        unaligned = handle.num_unaligned_recv_tokens_per_expert
        world.equal("num_unaligned_recv_tokens_per_expert", unaligned, torch.tensor(wanted.counts).int())
        if handle.psum_num_recv_tokens_per_scaleup_rank.numel() == world.size:
            world.equal(
                "psum_num_recv_tokens_per_scaleup_rank", handle.psum_num_recv_tokens_per_scaleup_rank, by_source
            )
        world.equal("recv_src_metadata, column 0", handle.recv_src_metadata[:n, 0].contiguous(), wanted.source)
        if expand:
            places = wanted.places(alignment)
            rows = [[places.get((token, k), -1) for k in range(case.shape.num_topk)] for token in range(n)]
            table = torch.tensor(rows, dtype=torch.int32).reshape(n, case.shape.num_topk)
            world.equal("recv_src_metadata, expanded rows", handle.recv_src_metadata[:n, 2:].contiguous(), table)


@check("C.2")
def elastic_dispatch_expanded(world: World) -> None:
    """Expanded: a row for each (token, local expert), by expert, an expert's rows padded to the alignment. Part C.2."""
    for turn, alignment in enumerate((1, 7, 8)):
        case = busy_case(world, turn)
        got = dispatch(world, case, do_expand=True, expert_alignment=alignment)
        wanted = arrivals(world, case)[world.rank]
        world.equal("rows of recv_x", got[0].shape[0], len(wanted.layout(alignment)))
        compare_expanded(world, got, wanted, alignment)


@check("C.2")
def elastic_dispatch_zero_padding(world: World) -> None:
    """With do_zero_padding every padding row is zero, whatever was in the memory before. Part C.2."""
    case, other = busy_case(world), busy_case(world, 1, "uniform")
    dispatch(world, other, do_expand=True, expert_alignment=8)
    got = dispatch(world, case, do_expand=True, expert_alignment=8, do_zero_padding=True)
    compare_expanded(world, got, arrivals(world, case)[world.rank], 8, zeros=True)


@check("C.2")
def elastic_dispatch_fp8(world: World) -> None:
    """FP8 rows and scales arrive to the byte, f32 and packed int32, from scales of any strides, expanded or not.

    Parts C.2 and B.1. The cast is the caller's.
    """
    case = busy_case(world)
    for packed in (False, True):
        casts = [reference.cast_fp8(x, round_scale=packed, use_ue8m0=packed) for x in case.x]
        data, scales = (world.put(t) for t in casts[world.rank])
        wanted = arrivals(world, case, casts)[world.rank]
        compare(world, dispatch(world, case, x=(data, scales)), wanted)
        columns = scales.T.contiguous().T
        got = dispatch(world, case, x=(data, columns), do_expand=True, expert_alignment=8)
        compare_expanded(world, got, wanted, 8)


@check("C.2")
def elastic_dispatch_column_major_scales(world: World) -> None:
    """use_tma_aligned_col_major_sf: strides (1, rows rounded up to 4); else scales are row-major. Part C.2."""
    case = busy_case(world)
    casts = [reference.cast_fp8(x) for x in case.x]
    data, scales = (world.put(t) for t in casts[world.rank])
    for columns in (False, True):
        for expand in (False, True):
            got = dispatch(world, case, x=(data, scales), do_expand=expand, use_tma_aligned_col_major_sf=columns)
            received = split(got[0])[1]
            rows, packs = received.shape
            if rows > 1:
                stride = (1, -(-rows // 4) * 4) if columns else (packs, 1)
                world.equal(f"strides, column-major={columns}, expanded={expand}", received.stride(), stride)


@check("C.2")
def elastic_dispatch_without_cpu_sync(world: World) -> None:
    """do_cpu_sync=False: rows of the worst size, an empty list, and the true number in the handle. Part C.2."""
    case = busy_case(world)
    wanted = arrivals(world, case)[world.rank]
    got = dispatch(world, case, do_cpu_sync=False)
    world.equal("rows of recv_x", got[0].shape[0], MAX_TOKENS * world.size)
    compare(world, got, wanted)
    expanded = dispatch(world, case, do_cpu_sync=False, do_expand=True, expert_alignment=8)
    world.equal("expanded rows", expanded[0].shape[0], worst_rows(world, 8, case.shape.num_topk))
    compare_expanded(world, expanded, wanted, 8)
    for handle in (got[3], expanded[3]):
        world.equal("num_recv_tokens_per_expert_list", handle.num_recv_tokens_per_expert_list, [])
        received = int(handle.psum_num_recv_tokens_per_scaleup_rank[-1])
        world.equal("psum_num_recv_tokens_per_scaleup_rank[-1]", received, wanted.tokens.num_rows)


@check("C.2")
def elastic_dispatch_cached(world: World) -> None:
    """With a handle: 5 values, the same handle object, ids and new weights; expanded too. Part C.2."""
    case, other = busy_case(world), busy_case(world)
    for rank, x in enumerate(other.x):
        other.x[rank] = world.rows(60 + rank, *x.shape)
        other.topk_weights[rank] = case.topk_weights[rank] + 1
    wanted = arrivals(world, other)[world.rank]
    x, weights = world.put(other.x[world.rank]), world.put(other.topk_weights[world.rank])
    for expand in (False, True):
        handle = dispatch(world, case, do_expand=expand, expert_alignment=8)[3]
        again = elastic(world).dispatch(
            x, topk_weights=weights, handle=handle, num_experts=world.num_experts, num_sms=handle.num_sms,
            do_cpu_sync=False, do_expand=expand,
        )  # fmt: skip
        world.equal("values that a cached dispatch returns", len(again), 5)
        world.expect(again[3] is handle, "a cached dispatch returns another handle")
        if expand:
            compare_expanded(world, again, wanted, 8)
        else:
            compare(world, again, wanted)


@check("C.2")
def elastic_dispatch_repeats(world: World) -> None:
    """deterministic=True: equal calls give the same bits, whatever num_sms is. Part C.2."""
    case = busy_case(world, traffic="uniform")
    for expand in (False, True):
        first = dispatch(world, case, do_expand=expand)
        for sms in (0, 8, 0):
            again = dispatch(world, case, do_expand=expand, num_sms=sms)
            for what, index in (("recv_x", 0), ("recv_topk_weights", 2)):
                same = torch.equal(bits(first[index]), bits(again[index]))
                world.expect(same, f"{what} differs between equal calls, expanded={expand}, num_sms={sms}")


@check("C.2")
def elastic_dispatch_one_token(world: World) -> None:
    """T = 1 on every rank, expanded or not. Part C.2."""
    case = busy_case(world)
    for rank in range(world.size):
        fill_with_one_token(world, case, rank)
    wanted = arrivals(world, case)[world.rank]
    compare(world, dispatch(world, case), wanted)
    compare_expanded(world, dispatch(world, case, do_expand=True, expert_alignment=8), wanted, 8)


@check("C.2")
def elastic_dispatch_all_unused(world: World) -> None:
    """Tokens whose ids are all -1 go nowhere: no rows, counts of 0, expanded or not. Part C.2."""
    case = busy_case(world, traffic="all_unused")
    for rank in range(world.size):
        case.topk_idx[rank] = torch.full_like(case.topk_idx[rank], -1)
    for expand in (False, True):
        got = dispatch(world, case, do_expand=expand, expert_alignment=8)
        world.equal("rows of recv_x", got[0].shape[0], 0)
        world.equal("num_recv_tokens_per_expert_list", got[3].num_recv_tokens_per_expert_list, [0] * LOCAL_EXPERTS)


@check("C.2", required=False)
def elastic_dispatch_zero_tokens(world: World) -> None:
    """Ranks without tokens take part: all of them, then every other one.

    Part C.2 leaves it open: integrators pad an idle rank with a token that counts for nothing.
    """
    empty = world.case(traffic="no_tokens")
    compare(world, dispatch(world, empty), arrivals(world, empty)[world.rank])
    case = busy_case(world, 1)
    for rank in range(0, world.size, 2):
        for tensors in (case.x, case.topk_idx, case.topk_weights):
            tensors[rank] = tensors[rank][:0]
    wanted = arrivals(world, case)[world.rank]
    compare(world, dispatch(world, case), wanted)
    compare_expanded(world, dispatch(world, case, do_expand=True), wanted, 1)


@check("C.2", required=False)
def elastic_dispatch_duplicates(world: World) -> None:
    """A token that names an expert twice has a row for each choice when expanded.

    Part C.2 leaves it open: a token's experts must be distinct.
    """
    case = busy_case(world)
    for rank in range(world.size):
        case.topk_idx[rank][:, -1] = case.topk_idx[rank][:, 0]
    wanted = arrivals(world, case)[world.rank]
    compare(world, dispatch(world, case), wanted)
    compare_expanded(world, dispatch(world, case, do_expand=True), wanted, 1)


@check("C.2")
def elastic_dispatch_counts_tokens(world: World) -> None:
    """cumulative_local_expert_recv_stats: counts of tokens by expert are added to it. Part C.2."""
    case = busy_case(world)
    stats = world.put(torch.full((LOCAL_EXPERTS,), 5, dtype=torch.int32))
    for _ in range(2):
        dispatch(world, case, cumulative_local_expert_recv_stats=stats)
    counts = torch.tensor(arrivals(world, case)[world.rank].counts, dtype=torch.int32)
    world.equal("cumulative_local_expert_recv_stats", stats, 5 + 2 * counts)


@check("C.2")
def elastic_events(world: World) -> None:
    """async_with_compute_stream gives an event; previous_event is a bare one. Part C.2."""
    case, buffer = busy_case(world), elastic(world)
    got = dispatch(world, case, async_with_compute_stream=True, previous_event=buffer.capture(),
                   allocate_on_comm_stream=True)  # fmt: skip
    if world.expect(got[4].event is not None, "the event of an asynchronous dispatch is None"):
        got[4].current_stream_wait()
        compare(world, got, arrivals(world, case)[world.rank])


@check("C.2")
def elastic_dispatch_refusals(world: World) -> None:
    """What contradicts itself is refused before anything is sent; the next call works. Part C.2."""
    case, buffer = busy_case(world), elastic(world)
    handle = dispatch(world, case)[3]
    x, ids = world.put(case.x[world.rank]), world.put(case.topk_idx[world.rank])
    topk: dict[str, Any] = {"topk_idx": ids, "num_experts": world.num_experts}
    world.refused("zero padding of what is not expanded", lambda: buffer.dispatch(x, **topk, do_zero_padding=True))
    world.refused("previous_event alone", lambda: buffer.dispatch(x, **topk, previous_event=buffer.capture()))
    world.refused("topk_idx with a handle", lambda: buffer.dispatch(x, **topk, handle=handle))
    world.refused("do_cpu_sync with a handle", lambda: buffer.dispatch(x, handle=handle, do_cpu_sync=True))
    many = world.put(torch.zeros(MAX_TOKENS + 1, HIDDEN, dtype=torch.bfloat16))
    topk["topk_idx"] = ids[:1].expand(MAX_TOKENS + 1, -1).contiguous()
    world.refused("more tokens than num_max_tokens_per_rank", lambda: buffer.dispatch(many, **topk))
    compare(world, dispatch(world, case), arrivals(world, case)[world.rank])
