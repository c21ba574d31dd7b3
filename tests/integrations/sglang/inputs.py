"""What SGLang's dispatchers are given, and what must come out."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.integrations.world import seeded

HIDDEN, EXPERTS, TOPK = 2048, 16, 4
TOKENS = (19, 0, 32, 3)  # of each rank: odd, none, many, few
BF16, FP8 = 0.02, 0.1
UNUSED = -1


def inputs(rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """bf16 rows [T, H], ids [T, K] with some -1 among them, float32 weights [T, K]."""
    tokens = TOKENS[rank]
    x = seeded(50 + rank, torch.randn, tokens, HIDDEN).bfloat16()
    ids = seeded(60 + rank, torch.rand, tokens, EXPERTS).topk(TOPK, dim=-1).indices
    ids[::5, -1] = UNUSED
    return x, ids, seeded(70 + rank, torch.rand, tokens, TOPK)


def factors() -> Tensor:
    """What expert e multiplies rows by: no two experts do the same, and powers of two keep rows exact."""
    return 2.0 ** (torch.arange(EXPERTS) % 4 - 2) * (-1.0) ** (torch.arange(EXPERTS) // 4)


def wanted(rank: int) -> Tensor:
    x, ids, weights = inputs(rank)
    scaled = weights * torch.where(ids == UNUSED, 0.0, factors()[ids])
    return x.float() * scaled.sum(1, keepdim=True)
