"""The oracle: what dispatch and combine must return, in plain torch on the CPU, for all ranks at once in one process.

The definition of "correct" that kernels, proxy and bindings are tested against, so it is written to be read. Inputs are
lists indexed by rank. T tokens and K choices of a rank, N ranks, E experts, L = E / N experts a rank, H channels, M
most tokens of a rank in one low-latency call, P = N * M. Rules: DeepEP V1's documented numerics.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from uccl_ep.errors import refuse
from uccl_ep.reference.formats import as_received, cast_fp8, column_major, fused_multiply_add
from uccl_ep.sizes import round_up


class Layout(NamedTuple):
    """What `get_dispatch_layout` returns, in its order. `event` is None: the oracle is synchronous."""

    num_tokens_per_rank: Tensor  # int32 [N], a token counts once per rank
    num_tokens_per_rdma_rank: Tensor | None  # int32 [nodes], once per node; None when there is one node
    num_tokens_per_expert: Tensor  # int32 [E], every choice counts
    is_token_in_rank: Tensor  # bool [T, N]
    event: None = None


def node_ranges(num_ranks: int, ranks_per_node: int | Sequence[int] | None) -> list[range]:
    """Ranks of each node: a size for all (the last node takes the rest), a list of sizes, or None for one node.

    Raises:
        InvalidArgument: a size below 1, or sizes that do not add up to `num_ranks`.
    """
    if ranks_per_node is None:
        sizes = [num_ranks]
    elif isinstance(ranks_per_node, int):
        if ranks_per_node < 1:
            refuse("ranks_per_node", ranks_per_node, "1 or more")
        sizes = [min(ranks_per_node, num_ranks - first) for first in range(0, num_ranks, ranks_per_node)]
    else:
        sizes = list(ranks_per_node)
    if sum(sizes) != num_ranks or min(sizes) < 1:
        refuse("ranks_per_node", ranks_per_node, f"sizes of 1 or more that add up to {num_ranks} ranks")
    return [range(sum(sizes[:node]), sum(sizes[: node + 1])) for node in range(len(sizes))]


def experts_per_rank(num_experts: int, num_ranks: int) -> int:
    """L = E / N; refuses an E that N does not divide (InvalidArgument)."""
    if num_experts < 1 or num_experts % num_ranks:
        refuse("num_experts", num_experts, f"a multiple of the {num_ranks} ranks, at least one each")
    return num_experts // num_ranks


def _expert_hits(topk_idx: Tensor, num_experts: int) -> Tensor:
    """The experts that a token names, bool [T, E]; ids outside [0, E) name none."""
    hits = torch.zeros(topk_idx.shape[0], num_experts + 1, dtype=torch.bool)
    ids = topk_idx.long()
    hits.scatter_(1, torch.where((ids >= 0) & (ids < num_experts), ids, num_experts), True)
    return hits[:, :num_experts]


def dispatch_layout(
    topk_idx: Tensor, num_experts: int, num_ranks: int, ranks_per_node: int | Sequence[int] | None = None
) -> Layout:
    """Where the tokens of one rank go. `topk_idx` is an integer [T, K]; ids outside [0, E), such as -1, are ignored.

    Raises:
        InvalidArgument: `num_experts` or `ranks_per_node` does not fit `num_ranks`.
    """
    local = experts_per_rank(num_experts, num_ranks)
    in_rank = torch.unflatten(_expert_hits(topk_idx, num_experts), 1, (num_ranks, local)).any(-1)
    ids = topk_idx.long().flatten()
    per_expert = torch.bincount(ids[(ids >= 0) & (ids < num_experts)], minlength=num_experts).int()
    nodes = node_ranges(num_ranks, ranks_per_node)
    per_node = torch.stack([in_rank[:, node.start : node.stop].any(1).sum() for node in nodes]).int()
    return Layout(in_rank.sum(0).int(), per_node if len(nodes) > 1 else None, per_expert, in_rank)


@dataclass(frozen=True, eq=False)
class ThroughputInput:
    """One rank's tokens: `x` [T, H] of any dtype, its `scales` [T, S] if quantised, and where each token goes."""

    x: Tensor
    is_token_in_rank: Tensor  # bool [T, N]
    topk_idx: Tensor | None = None  # integer [T, K]; both of these, or neither
    topk_weights: Tensor | None = None  # f32 [T, K]
    scales: Tensor | None = None


@dataclass(frozen=True, eq=False)
class ThroughputReceived:
    """One rank's received rows, by source rank and then source token. n rows, or `num_worst_tokens` of them with those
    beyond n marked by -1 (topk_idx, src_rank, src_token) and zero elsewhere, where the contract leaves them undefined.
    """

    recv_x: Tensor  # [n, H]
    recv_scales: Tensor | None  # [n, S] contiguous
    recv_topk_idx: Tensor | None  # [n, K], local expert id or -1
    recv_topk_weights: Tensor | None  # f32 [n, K], 0 where the id is -1
    num_recv_tokens_per_expert_list: list[int]  # choices per local expert, rounded up; [] without ids or padded
    src_rank: Tensor  # int32 [n]
    src_token: Tensor  # int32 [n]
    num_rows: int  # n, without padding
    num_own_tokens: int  # T of this rank, what combine gives back


def _bytewise(values: Tensor) -> Tensor:
    """The same memory as uint8 if elements are bytes: torch cannot index or join float8."""
    return values.view(torch.uint8) if values.itemsize == 1 else values


def _take(values: Sequence[Tensor], rows: Sequence[Tensor], total: int, fill: int = 0) -> Tensor:
    """Rows `rows[s]` of every `values[s]`, one after the other, then rows of `fill` up to `total`."""
    taken = torch.cat([_bytewise(v)[r] for v, r in zip(values, rows, strict=True)])
    padding = torch.full((total - taken.shape[0], *taken.shape[1:]), fill, dtype=taken.dtype)
    return torch.cat([taken, padding]).view(values[0].dtype)


def throughput_dispatch(
    inputs: Sequence[ThroughputInput], num_experts: int, expert_alignment: int = 1, num_worst_tokens: int = 0
) -> list[ThroughputReceived]:
    """Throughput dispatch of all ranks; row order and padding as ThroughputReceived says.

    Args:
        inputs: one per rank; a rank may have no token.
        num_experts: E, over all ranks.
        expert_alignment: counts per expert are rounded up to a multiple; rows are not padded.
        num_worst_tokens: rows of every result, or 0 for the exact number; needs top-k.

    Raises:
        InvalidArgument: more rows than `num_worst_tokens`, worst tokens without top-k, or E not a multiple of N.
    """
    local = experts_per_rank(num_experts, len(inputs))
    result = []
    for rank, own in enumerate(inputs):
        rows = [source.is_token_in_rank[:, rank].nonzero().flatten() for source in inputs]
        num_rows = sum(r.numel() for r in rows)
        total = num_worst_tokens or num_rows
        if total < num_rows:
            refuse("num_worst_tokens", num_worst_tokens, f"{num_rows} or more", f"Rank {rank} receives that many.")
        sources = [torch.full_like(r, source) for source, r in enumerate(rows)]
        scales = [i.scales for i in inputs if i.scales is not None]
        ids = [i.topk_idx for i in inputs if i.topk_idx is not None]
        weights = [i.topk_weights for i in inputs if i.topk_weights is not None]
        recv_idx = recv_weights = None
        counts: list[int] = []
        if ids:
            recv_idx = _take(ids, rows, total, fill=-1).long() - rank * local
            recv_idx = torch.where((recv_idx >= 0) & (recv_idx < local), recv_idx, -1).to(ids[0].dtype)
            recv_weights = torch.where(recv_idx >= 0, _take(weights, rows, total), 0.0)
            totals = torch.bincount(recv_idx[recv_idx >= 0].long(), minlength=local).tolist()
            counts = [] if num_worst_tokens else [round_up(count, expert_alignment) for count in totals]
        elif num_worst_tokens:
            refuse("num_worst_tokens", num_worst_tokens, "0 without topk_idx", "Padding is marked by topk_idx = -1.")
        recv_x = _take([i.x for i in inputs], rows, total)
        recv_scales = _take(scales, rows, total) if scales else None
        everything = [torch.arange(r.numel()) for r in rows]
        src_rank, src_token = (_take(values, everything, total, fill=-1).int() for values in (sources, rows))
        received = (recv_x, recv_scales, recv_idx, recv_weights, counts, src_rank, src_token, num_rows)
        result.append(ThroughputReceived(*received, own.x.shape[0]))
    return result


Bias = Tensor | tuple[Tensor | None, Tensor | None] | None


def throughput_combine(
    x: Sequence[Tensor],
    received: Sequence[ThroughputReceived],
    topk_weights: Sequence[Tensor] | None = None,
    bias: Sequence[Bias] | None = None,
    ranks_per_node: int | Sequence[int] | None = None,
    apart: int = 0,
) -> tuple[list[Tensor], list[Tensor] | None]:
    """Throughput combine of all ranks: the unweighted sum of what every receiving rank gives back for a token.

    One node: an f32 sum starts at bias0 + bias1, adds ranks in ascending order and is rounded to bf16 once. Several:
    each node sums its ranks in f32 and rounds to bf16; then bias0 + bias1 plus nodes in ascending order, in f32, and
    rounded. Only ranks that received the token take part; without any, the bias or 0 is given. Weights are summed the
    same way but stay f32.

    Args:
        x: bf16 [n, H] per rank, in the order of its received rows (padding is ignored).
        received: what `throughput_dispatch` returned.
        topk_weights: f32 [n, K] per rank, or None.
        bias: per rank None, a bf16 [T, H], or a pair of them.
        ranks_per_node: see `node_ranges`.
        apart: ranks of another node whose rows are summed before they cross: 1 with enable_shrink, those of a host in a
            node of several hosts; 0: all of the node's.

    Returns: bf16 [T, H] per rank, and f32 [T, K] per rank or None.

    Raises:
        InvalidArgument: rows of a rank do not match what it received, or `x` is not bf16.
    """
    all_nodes = node_ranges(len(x), ranks_per_node)
    for rank, rows in enumerate(x):
        if rows.dtype != torch.bfloat16 or rows.shape[0] != received[rank].src_rank.numel():
            due = received[rank].src_rank.numel()
            refuse(f"x[{rank}]", rows, f"of torch.bfloat16 and {due} rows")
    combined, weights = [], []
    for source, own in enumerate(received):
        zero = torch.zeros(own.num_own_tokens, x[source].shape[1])
        given = bias[source] if bias is not None else None
        first, second = given if isinstance(given, tuple) else (given, None)
        start = (zero if first is None else first.float()) + (zero if second is None else second.float())
        nodes = [part for node in all_nodes for part in ([node] if source in node or not apart else _cut(node, apart))]
        combined.append(_sum_over_ranks(x, received, source, nodes, start, torch.bfloat16).bfloat16())
        if topk_weights is not None:
            start = torch.zeros(own.num_own_tokens, topk_weights[source].shape[1])
            weights.append(_sum_over_ranks(topk_weights, received, source, nodes, start, torch.float32))
    return combined, weights if topk_weights is not None else None


def _cut(ranks: range, size: int) -> list[range]:
    return [range(first, min(first + size, ranks.stop)) for first in ranks[::size]]


def _sum_over_ranks(
    values: Sequence[Tensor],
    received: Sequence[ThroughputReceived],
    source: int,
    nodes: Sequence[range],
    start: Tensor,
    partial_dtype: torch.dtype,
) -> Tensor:
    """f32 [T, ...]: `start` plus the rows of rank `source`'s tokens, over ranks or over nodes rounded in between."""
    if len(nodes) == 1:
        return _add_ranks(start, values, received, source, nodes[0])[0]
    total = start
    for node in nodes:
        partial, touched = _add_ranks(torch.zeros_like(start), values, received, source, node)
        total = torch.where(touched.unsqueeze(-1), total + partial.to(partial_dtype).float(), total)
    return total


def _add_ranks(
    start: Tensor, values: Sequence[Tensor], received: Sequence[ThroughputReceived], source: int, ranks: range
) -> tuple[Tensor, Tensor]:
    total, touched = start.clone(), torch.zeros(start.shape[0], dtype=torch.bool)
    for rank in ranks:
        rows = (received[rank].src_rank == source).nonzero().flatten()
        tokens = received[rank].src_token[rows].long()
        total[tokens] += values[rank][rows].float()  # a rank has at most one row of a token, so no lost addition
        touched[tokens] = True
    return total, touched


class Fp8Format(NamedTuple):
    """How low-latency dispatch quantises rows; see `cast_fp8`."""

    round_scale: bool = False
    use_ue8m0: bool = False


@dataclass(frozen=True, eq=False)
class LowLatencyReceived:
    """One rank's result of low-latency dispatch. Per local expert the rows of source rank 0, then 1, and so on, each in
    token order. DeepEP leaves that order open; ours is fixed. Rows beyond `recv_count` are zero here, undefined there.
    """

    recv_x: Tensor  # bf16 or float8_e4m3fn [L, P, H]
    scales: Tensor | None  # f32 [L, P, H/128] or int32 [L, P, H/512], strides (P * S, 1, P)
    recv_count: Tensor  # int32 [L]
    src_info: Tensor  # int32 [L, P], token on its source rank; -1 beyond recv_count
    layout_range: Tensor  # int64 [L, N], rows from each source: count in the low 32 bits, first row in the high 32


Masks = Sequence[Collection[int]] | None


def _connected(masked: Masks, first: int, second: int) -> bool:
    """Nothing passes between two ranks when either of them masks the other."""
    return masked is None or (second not in masked[first] and first not in masked[second])


def low_latency_dispatch(
    x: Sequence[Tensor],
    topk_idx: Sequence[Tensor],
    num_max_dispatch_tokens_per_rank: int,
    num_experts: int,
    fp8: Fp8Format | None = None,
    masked: Masks = None,
) -> list[LowLatencyReceived]:
    """Low-latency dispatch of all ranks. A token that names an expert twice is sent to it once.

    Args:
        x: bf16 [T, H] per rank, T at most `num_max_dispatch_tokens_per_rank` (M), may be 0.
        topk_idx: integer [T, K] per rank; ids outside [0, E) are skipped.
        num_max_dispatch_tokens_per_rank, num_experts: M and E.
        fp8: quantise rows this way; None sends bf16.
        masked: the ranks that each rank masks, one collection per rank.

    Raises:
        InvalidArgument: more than M tokens, E not a multiple of N, or H does not fit `fp8`.
    """
    num_ranks, most = len(x), num_max_dispatch_tokens_per_rank
    local = experts_per_rank(num_experts, num_ranks)
    shape = (local, num_ranks * most)
    for rank, own in enumerate(x):
        if own.shape[0] > most:
            refuse(f"x[{rank}]", own, f"of up to {most} rows", "See num_max_dispatch_tokens_per_rank.")
    tokens_of_all = torch.cat(list(x))
    data, scales = (tokens_of_all, None) if fp8 is None else cast_fp8(tokens_of_all, *fp8)
    hits = [_expert_hits(ids, num_experts) for ids in topk_idx]
    token_of_row = torch.cat([torch.arange(own.shape[0]) for own in x])
    result = []
    for rank in range(num_ranks):
        experts = slice(rank * local, (rank + 1) * local)
        sent = [hits[s][:, experts] & _connected(masked, rank, s) for s in range(num_ranks)]
        # [L, tokens of all ranks]: its true entries in row-major order are the rows, in our order.
        expert, row = torch.cat(sent).T.nonzero(as_tuple=True)
        per_source = torch.stack([s.sum(0) for s in sent], 1)
        begin = per_source.cumsum(1) - per_source
        count = per_source.sum(1)
        slot = torch.arange(expert.numel()) - (count.cumsum(0) - count)[expert]
        rows = (expert, slot, row)
        recv_x = _scatter(data, rows, shape)
        recv_scales = None if scales is None else column_major(_scatter(scales, rows, shape))
        src_info = torch.full(shape, -1, dtype=torch.int32)
        src_info[expert, slot] = token_of_row[row].int()
        result.append(LowLatencyReceived(recv_x, recv_scales, count.int(), src_info, begin << 32 | per_source))
    return result


def _scatter(values: Tensor, rows: tuple[Tensor, Tensor, Tensor], shape: tuple[int, int]) -> Tensor:
    expert, slot, source_row = rows
    raw = _bytewise(values)
    out = torch.zeros(*shape, raw.shape[-1], dtype=raw.dtype)
    out[expert, slot] = raw[source_row]
    return out.view(values.dtype)


def slots_of(received: LowLatencyReceived, source: int, num_tokens: int) -> Tensor:
    """int64 [L, T]: the row that holds each token of rank `source`, or -1. Reads only what the contract defines."""
    begin, count = received.layout_range[:, source] >> 32, received.layout_range[:, source] & 0xFFFFFFFF
    slots = torch.arange(received.src_info.shape[1])
    valid = (slots >= begin.unsqueeze(1)) & (slots < (begin + count).unsqueeze(1))
    expert, slot = valid.nonzero(as_tuple=True)
    table = torch.full((begin.numel(), num_tokens), -1)
    table[expert, received.src_info[expert, slot].long()] = slot
    return table


def low_latency_combine(
    x: Sequence[Tensor],
    topk_idx: Sequence[Tensor],
    topk_weights: Sequence[Tensor],
    received: Sequence[LowLatencyReceived],
    masked: Masks = None,
    **use: bool,
) -> list[Tensor]:
    """Low-latency combine of all ranks: bf16 [T, H] each.

    Per token an f32 sum starts at 0; for k = 0 to K-1 it becomes fma(row, weight, sum), skipping ids outside [0, E) and
    experts on masked ranks (weights are not renormalised), and is rounded to bf16 once. A repeated expert adds the same
    row once per k.

    Args:
        x: bf16 [L, P, H] per rank, row for row as received.
        topk_idx, masked: as in dispatch.
        topk_weights: f32 [T, K] per rank.
        received: what dispatch returned, in any row order that DeepEP's contract allows.
        use: how rows travel; see as_received.

    Raises:
        InvalidArgument: a token names an expert that it was not sent to.
    """
    num_ranks, local = len(x), x[0].shape[0]
    result = []
    for source in range(num_ranks):
        ids, weights = topk_idx[source].long(), topk_weights[source].float()
        table = torch.cat([slots_of(handle, source, ids.shape[0]) for handle in received])
        reachable = torch.tensor([_connected(masked, source, r) for r in range(num_ranks)]).repeat_interleave(local)
        acc = torch.zeros(ids.shape[0], x[0].shape[-1])
        for k in range(ids.shape[1]):
            valid = (ids[:, k] >= 0) & (ids[:, k] < num_ranks * local)
            token = (valid & reachable[ids[:, k].clamp(0, num_ranks * local - 1)]).nonzero().flatten()
            expert = ids[token, k]
            if bool(((slot := table[expert, token]) < 0).any()):
                refuse(f"topk_idx[{source}]", ids, "the ids that were dispatched", "A named expert has no row.")
            rows = torch.empty(token.numel(), x[0].shape[-1], dtype=torch.bfloat16)
            for rank in range(num_ranks):
                here = expert // local == rank
                rows[here] = x[rank][expert[here] % local, slot[here]]
            values = as_received(rows, **use)
            acc[token] = fused_multiply_add(values, weights[token, k].unsqueeze(1).expand_as(values), acc[token])
        result.append(acc.bfloat16())
    return result
