"""From received tokens to rows by expert, and back: index tables in plain torch, without waiting for the device.

n received tokens, K top-k, L local experts, `total` rows of the expanded result. Within an expert, rows are in the
order of received tokens (source rank, then token), so the result is the same every time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

Tensor = torch.Tensor


@dataclass(frozen=True)
class ExpertCounts:
    """Of one dispatch; all int64 [L] on the device.

    Attributes: `real`: (token, k) selections of each expert; `begin`: its first row in an expanded result; `end`: one
    past its last real row; `aligned_ends`: inclusive sums of rounded counts.
    """

    real: Tensor
    begin: Tensor
    end: Tensor
    aligned_ends: Tensor


def count_experts(recv_topk_idx: Tensor, num_local_experts: int, alignment: int) -> ExpertCounts:
    """Counts of `recv_topk_idx` [n, K], local experts or -1."""
    ids = recv_topk_idx.flatten()
    real = torch.zeros(num_local_experts + 1, dtype=torch.int64, device=ids.device)
    real.scatter_add_(0, torch.where(ids >= 0, ids, num_local_experts), torch.ones_like(ids))
    real = real[:num_local_experts]
    aligned = (real + alignment - 1) // alignment * alignment
    ends = aligned.cumsum(0)
    return ExpertCounts(real, ends - aligned, ends - aligned + real, ends)


def worst_rows(num_tokens: int, topk: int, num_local_experts: int, alignment: int) -> int:
    """Rows of an expanded result that always suffice for `num_tokens` received tokens."""
    rows = num_tokens * min(topk, num_local_experts) + (alignment - 1) * num_local_experts
    return -(-rows // alignment) * alignment


def expanded_rows(recv_topk_idx: Tensor, counts: ExpertCounts) -> Tensor:
    """int64 [n, K]: the expanded row of each (token, k), -1 where the id is -1."""
    num_local = counts.real.numel()
    ids = recv_topk_idx.flatten()
    experts = torch.where(ids >= 0, ids, num_local)
    order = experts.argsort(stable=True)  # by expert, tokens in order within one; unused choices last
    # In that order, expert e's entries begin after all entries of the experts before it, without padding.
    shift = torch.cat([counts.begin - (counts.real.cumsum(0) - counts.real), counts.begin.new_zeros(1)])
    place = torch.arange(ids.numel(), device=ids.device) + shift[experts[order]]
    rows = torch.empty_like(ids).scatter_(0, order, place)
    return torch.where(ids >= 0, rows, -1).view(recv_topk_idx.shape)


def choice_of_row(rows: Tensor, total: int) -> Tensor:
    """int64 [total]: the (token, k), as token * K + k, that stands in each expanded row; -1 in padding."""
    flat = rows.flatten()
    found = torch.full((total + 1,), -1, dtype=torch.int64, device=flat.device)  # the last one takes what has no row
    found.scatter_(0, torch.where(flat >= 0, flat, total), torch.arange(flat.numel(), device=flat.device))
    return found[:total]


def take_rows(values: Tensor, choices: Tensor, topk: int, zero_padding: bool) -> Tensor:
    """[total, ...]: the row of `values` [n, ...] for each choice; padding is zero, or some row of `values`."""
    raw = values.view(torch.uint8) if values.element_size() == 1 else values  # torch cannot index float8
    if raw.shape[0] == 0:
        return raw.new_zeros(choices.numel(), *raw.shape[1:]).view(values.dtype)
    taken = raw[choices.clamp(min=0) // topk]
    if zero_padding:
        taken = torch.where((choices >= 0).view(-1, *([1] * (raw.dim() - 1))), taken, torch.zeros_like(taken))
    return taken.view(values.dtype)


def write_rows(values: Tensor, choices: Tensor, topk: int, zero_padding: bool, out: Tensor) -> None:
    """take_rows into `out` [total, ...], of any strides, which needs no memory of its own where `out` is contiguous."""
    raw, target = (t.view(torch.uint8) if t.element_size() == 1 else t for t in (values, out))
    if raw.shape[0] and target.is_contiguous():
        torch.index_select(raw, 0, choices.clamp(min=0) // topk, out=target)
    elif raw.shape[0]:
        target.copy_(raw[choices.clamp(min=0) // topk])
    if zero_padding:
        target.masked_fill_((choices < 0).view(-1, *([1] * (raw.dim() - 1))), 0)


def spread_weights(weights: Tensor, choices: Tensor) -> Tensor:
    """f32 [total]: the weight of each expanded row of `weights` [n, K]; 0 in padding."""
    flat = weights.flatten()
    if flat.numel() == 0:
        return flat.new_zeros(choices.numel())
    return torch.where(choices >= 0, flat[choices.clamp(min=0)], 0.0)


def gather_weights(weights: Tensor, rows: Tensor) -> Tensor:
    """f32 [n, K] from the weights of expanded rows [total]; 0 where an expert is elsewhere."""
    if weights.numel() == 0:
        return weights.new_zeros(rows.shape)
    return torch.where(rows >= 0, weights[rows.clamp(min=0).long()], 0.0)


def row_of_choice(x: Tensor, rows: Tensor, k: int) -> Tensor:
    """[n, H]: row `rows[:, k]` of x [total, H], or zeros where it is -1."""
    if x.shape[0] == 0:
        return x.new_zeros(rows.shape[0], x.shape[1])
    at = rows[:, k].long()
    return torch.where((at >= 0).unsqueeze(1), x[at.clamp(min=0)], torch.zeros((), dtype=x.dtype, device=x.device))


def reduce_rows(x: Tensor, rows: Tensor) -> Tensor:
    """bf16 [n, H]: for each token the f32 sum of its expanded rows over ascending k, rounded once."""
    total = torch.zeros(rows.shape[0], x.shape[1], dtype=torch.float32, device=x.device)
    for k in range(rows.shape[1]):
        total += row_of_choice(x, rows, k).float()
    return total.to(x.dtype)


def last_choice(recv_topk_idx: Tensor) -> Tensor:
    """int64 [n]: the highest k of each token that names a local expert; -1 where none does."""
    place = torch.arange(recv_topk_idx.shape[1], device=recv_topk_idx.device).expand_as(recv_topk_idx)
    return torch.where(recv_topk_idx >= 0, place, -1).amax(1)


def column_major(scales: Tensor) -> Tensor:
    """The same values [rows, packs] with strides (1, rows rounded up to 4): what TMA loads of scales want."""
    rows, packs = scales.shape
    stored = torch.zeros(packs, -(-rows // 4) * 4, dtype=scales.dtype, device=scales.device).T[:rows]
    return stored.copy_(scales)
