# The caller's half of FP8 dispatch: in throughput mode a library moves FP8 rows and their scales as they are, so
# making them (one float32 scale for 128 channels) and reading them back is the model's work.
from __future__ import annotations

import torch
from torch import Tensor

from uccl_ep.tools.demo.options import FP8_BLOCK

E4M3_MAX = 448.0
AMAX_FLOOR = 1e-4
"""Smallest block maximum that is scaled, so that a block of zeros does not divide by zero."""


def to_fp8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """bf16 [n, hidden] -> (e4m3 [n, hidden], float32 scales [n, hidden / 128])."""
    count, hidden = rows.shape
    blocks = rows.float().view(count, hidden // FP8_BLOCK, FP8_BLOCK)
    amax = blocks.abs().amax(dim=-1, keepdim=True).clamp(min=AMAX_FLOOR)
    # Tensor by tensor on purpose: a Python scalar numerator would become reciprocal and multiply, one bit off.
    quantised = (blocks * (torch.full_like(amax, E4M3_MAX) / amax)).to(torch.float8_e4m3fn)
    return quantised.view(count, hidden), (amax / E4M3_MAX).view(count, hidden // FP8_BLOCK)


def from_fp8(quantised: Tensor, scales: Tensor) -> Tensor:
    """(e4m3 [n, hidden], float32 [n, hidden / 128]) -> bf16 [n, hidden]."""
    count, hidden = quantised.shape
    blocks = quantised.float().view(count, hidden // FP8_BLOCK, FP8_BLOCK) * scales.unsqueeze(-1)
    return blocks.view(count, hidden).to(torch.bfloat16)
