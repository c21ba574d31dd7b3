"""`deep_ep.utils.math`: comparisons, casts and small sums of DeepEP's tests, on tensors of any device."""

from __future__ import annotations

import re
from typing import Any

import torch

from uccl_ep.reference.formats import calc_diff as calc_diff
from uccl_ep.reference.formats import hash_tensor as sum_of_words

Tensor = torch.Tensor
_E4M3_MAX = 448.0
_BLOCK = 128
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def safe_div(a: float, b: float) -> float:
    """a / b, and 0 for 0 / 0.

    Raises:
        ZeroDivisionError: only b is 0.
    """
    return 0.0 if a == 0 and b == 0 else a / b


def ceil_div(x: int, y: int) -> int:
    """x / y, rounded up."""
    return -(-x // y)


def align(x: int, y: int) -> int:
    """The least multiple of y that is x or more."""
    return ceil_div(x, y) * y


def per_token_cast_to_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 [T, H] and scales f32 [T, ceil(H / 128)] of x [T, H]: block by block, value = q * scale."""
    rows, hidden = x.shape
    padded = torch.nn.functional.pad(x.float(), (0, align(hidden, _BLOCK) - hidden))
    blocks = padded.view(rows, -1, _BLOCK)
    most = blocks.abs().amax(2).clamp(min=1e-4)
    cast = (blocks * (_E4M3_MAX / most.unsqueeze(2))).to(torch.float8_e4m3fn).view(rows, -1)
    return cast[:, :hidden].contiguous(), most / _E4M3_MAX


def per_token_cast_back(x_fp8: Tensor, x_scales: Tensor) -> Tensor:
    """bf16 [T, H] of what per_token_cast_to_fp8 returned; int32 scales are four packed exponents (UE8M0) each."""
    rows, hidden = x_fp8.shape
    if x_scales.dtype == torch.int32:
        exponents = x_scales.contiguous().view(torch.uint8)[:, : ceil_div(hidden, _BLOCK)]
        x_scales = (exponents.int() << 23).view(torch.float32)
    scales = x_scales.float().repeat_interleave(_BLOCK, dim=1)[:, :hidden]
    return (x_fp8.float() * scales).bfloat16()


def inplace_unique(x: Tensor, num_slots: int) -> None:
    """Leaves in each row of integers x [T, K] its different values of 0 to num_slots - 1, descending, then -1."""
    for row in x:
        found = row[row >= 0].unique().flip(0)[: min(num_slots, x.shape[1])]
        row.fill_(-1)
        row[: found.numel()] = found


def create_grouped_scores(scores: Tensor, group_idx: Tensor, num_groups: int) -> Tensor:
    """scores [T, E] with zeros for experts of groups that a token's group_idx [T, G] does not name."""
    rows, experts = scores.shape
    chosen = torch.zeros(rows, num_groups, dtype=torch.bool, device=scores.device).scatter_(1, group_idx, True)
    return scores * chosen.repeat_interleave(experts // num_groups, dim=1)


def hash_tensor(t: Tensor) -> int:
    """The sum of t's bytes as int32 words: the same in any order of them."""
    return sum_of_words(t)


def hash_tensors(*tensors: Any) -> int:
    """hash_tensor of all tensors, also inside tuples and lists, by exclusive or; others are passed over."""
    value = 0
    for t in tensors:
        if isinstance(t, (tuple, list)):
            value ^= hash_tensors(*t)
        elif isinstance(t, Tensor):
            value ^= hash_tensor(t)
    return value


def count_bytes(*tensors: Any) -> int:
    """Bytes of all tensors, also inside tuples and lists; None counts as none."""
    total = 0
    for t in tensors:
        if isinstance(t, (tuple, list)):
            total += count_bytes(*t)
        elif t is not None:
            total += t.numel() * t.element_size()
    return total


def parse_num_bytes(text: str) -> int:
    """`"64M"` as bytes: a number, then k, m, g or t (powers of 1024) or nothing, then b or ib or nothing.

    Raises:
        ValueError: it is something else, or below one byte.
    """
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([kmgt]?)(?:i?b)?\s*", text, re.IGNORECASE)
    size = int(float(match[1]) * _UNITS[match[2].lower()]) if match else 0
    if size <= 0:
        raise ValueError(f"{text!r} is no number of bytes; write 1048576, 512k, 64M or 1G")
    return size
