"""The oracle of a low-latency combine that is reduced in the node before rows cross to another."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from uccl_ep.reference.calls import LowLatencyReceived, node_ranges, slots_of
from uccl_ep.reference.formats import as_received, fused_multiply_add


def low_latency_combine_by_node(
    x: Sequence[Tensor],
    topk_idx: Sequence[Tensor],
    topk_weights: Sequence[Tensor],
    received: Sequence[LowLatencyReceived],
    ranks_per_node: int | Sequence[int] | None,
    **use: bool,
) -> list[Tensor]:
    """bf16 [T, H] per rank, as UCCL_EP_LOW_LATENCY_COMBINE=node gives it.

    Each node but a token's own sums its rows of the token in f32 over ascending k, as fma(row, weight, sum) from 0, and
    rounds to bf16, then to the format in which rows travel, if there is one. The owner goes through k in ascending
    order: rows of its own node as fma(row, weight, sum), of another node its rounded sum, at the lowest k that is
    there. It rounds once more.

    Args:
        x, topk_idx, topk_weights, received: see reference.low_latency_combine.
        ranks_per_node: see reference.node_ranges.
        use: how sums and the rows of the token's own node travel; see as_received.
    """
    nodes = node_ranges(len(x), ranks_per_node)
    result = []
    for source in range(len(x)):
        rows = _rows_by_k(x, topk_idx[source].long(), received, source)
        weights = topk_weights[source].float()
        total = torch.zeros(weights.shape[0], x[0].shape[-1])
        partial = [torch.zeros_like(total) for _ in nodes]
        lowest = torch.full((len(nodes), weights.shape[0]), -1)
        for k, (valid, owner, row) in enumerate(rows):
            for n, node in enumerate(nodes):
                here = valid & (owner >= node.start) & (owner < node.stop)
                weight = weights[here, k].unsqueeze(1).expand_as(row[here])
                partial[n][here] = fused_multiply_add(row[here], weight, partial[n][here])
                lowest[n] = torch.where(here & (lowest[n] < 0), k, lowest[n])
        sums = [as_received(each.bfloat16(), **use) for each in partial]
        for k, (valid, owner, row) in enumerate(rows):
            for n, node in enumerate(nodes):
                if source not in node:
                    first = lowest[n] == k
                    total[first] += sums[n][first]
                    continue
                here = valid & (owner >= node.start) & (owner < node.stop)
                weight = weights[here, k].unsqueeze(1).expand_as(row[here])
                values = as_received(row[here].bfloat16(), **use)
                total[here] = fused_multiply_add(values, weight, total[here])
        result.append(total.bfloat16())
    return result


def _rows_by_k(
    x: Sequence[Tensor], ids: Tensor, received: Sequence[LowLatencyReceived], source: int
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """For each k: (bool [T] a row is there, [T] the rank that gives it, f32 [T, H] the rows, 0 elsewhere)."""
    local, num_tokens = x[0].shape[0], ids.shape[0]
    table = torch.cat([slots_of(handle, source, num_tokens) for handle in received])
    found = []
    for k in range(ids.shape[1]):
        valid = (ids[:, k] >= 0) & (ids[:, k] < len(x) * local)
        rows = torch.zeros(num_tokens, x[0].shape[-1])
        for token in valid.nonzero().flatten().tolist():
            expert = int(ids[token, k])
            rows[token] = x[expert // local][expert % local, int(table[expert, token])].float()
        found.append((valid, ids[:, k] // local, rows))
    return found
