"""Random inputs for property tests: the traffic shapes that break expert-parallel libraries, from a seed.

Ranks with few or no tokens, unused choices (-1), nothing but unused choices, one expert named twice by a token, and one
expert that everybody wants.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from uccl_ep.errors import one_of, refuse

TRAFFIC = ("uniform", "some_unused", "all_unused", "duplicates", "hot_expert", "no_tokens", "out_of_range")


@dataclass(frozen=True)
class CaseShape:
    """Sizes of a case: N, E (over all ranks), K, H, and the most tokens of one rank."""

    num_ranks: int = 4
    num_experts: int = 8
    num_topk: int = 2
    hidden: int = 256
    max_tokens: int = 16


@dataclass(frozen=True, eq=False)
class RandomCase:
    """Inputs of all ranks, lists indexed by rank: x bf16 [T, H], topk_idx int64 [T, K], topk_weights f32 [T, K]."""

    shape: CaseShape
    traffic: tuple[str, ...]  # what was drawn for each rank
    x: list[Tensor]
    topk_idx: list[Tensor]
    topk_weights: list[Tensor]


def random_case(seed: int, shape: CaseShape | None = None, traffic: str = "mixed") -> RandomCase:
    """A case that depends on the arguments alone. T of each rank is uneven: 0 to `max_tokens`, both included.

    Args:
        seed: any whole number from 0.
        shape: sizes; None means the defaults.
        traffic: one of `TRAFFIC` for all ranks, or "mixed" to draw one for each rank.

    Raises:
        InvalidArgument: `traffic` is not one of those.
    """
    if traffic != "mixed" and traffic not in TRAFFIC:
        refuse("traffic", traffic, one_of(("mixed", *TRAFFIC)))
    shape = shape or CaseShape()
    generator = torch.Generator().manual_seed(seed)
    kinds, x, topk_idx, topk_weights = [], [], [], []
    for _ in range(shape.num_ranks):
        drawn = int(torch.randint(len(TRAFFIC), (1,), generator=generator))
        tokens = int(torch.randint(shape.max_tokens + 1, (1,), generator=generator))
        kinds.append(TRAFFIC[drawn] if traffic == "mixed" else traffic)
        tokens = 0 if kinds[-1] == "no_tokens" else tokens
        # Rows of very different size, so that the order of a sum matters and scales differ between blocks.
        size = torch.exp2(torch.randint(-6, 7, (tokens, 1), generator=generator).float())
        x.append((torch.randn(tokens, shape.hidden, generator=generator) * size).bfloat16())
        topk_idx.append(_choices(kinds[-1], tokens, shape, generator))
        topk_weights.append(torch.rand(tokens, shape.num_topk, generator=generator))
    return RandomCase(shape, tuple(kinds), x, topk_idx, topk_weights)


def _choices(kind: str, tokens: int, shape: CaseShape, generator: torch.Generator) -> Tensor:
    experts, topk = shape.num_experts, shape.num_topk
    scores = torch.rand(tokens, experts, generator=generator)
    ids = scores.topk(min(topk, experts), dim=1).indices  # without repetition, as a router chooses
    ids = torch.nn.functional.pad(ids, (0, topk - ids.shape[1]), value=-1)
    if kind == "some_unused":
        ids = torch.where(torch.rand(tokens, topk, generator=generator) < 0.4, -1, ids)
    elif kind == "all_unused":
        ids = torch.full_like(ids, -1)
    elif kind == "duplicates":
        ids = torch.randint(max(1, experts // 2), (tokens, topk), generator=generator)
        ids[:, -1] = ids[:, 0]
    elif kind == "hot_expert":
        hot = int(torch.randint(experts, (1,), generator=generator))
        ids = torch.where(ids == hot, -1, ids)  # keep it once per token
        ids[:, 0] = hot
    elif kind == "out_of_range":
        wrong = torch.randint(experts, experts + 1000, (tokens, topk), generator=generator)
        ids = torch.where(torch.rand(tokens, topk, generator=generator) < 0.4, wrong, ids)
    return ids
