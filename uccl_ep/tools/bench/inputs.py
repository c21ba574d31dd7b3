"""Inputs of an exchange, the same from the same seed, what stands in for the experts, and what must come out."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from uccl_ep.tools.bench.options import BenchOptions

# Relative to 1 + |expected|: bf16 sums of up to `topk` rows, with a rounding at every node or rank on the way.
TOLERANCE = 0.04


@dataclass(frozen=True)
class Inputs:
    """One rank's tokens: x bf16 [T, H], ids int64 [T, K] without repeats, weights float32 [T, K]."""

    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor


def make_inputs(options: BenchOptions, rank: int, number: int = 0) -> Inputs:
    """Random routing, as a fresh gate gives it. `number` tells sets that take turns apart, so stale rows are wrong.

    The values of x lie on a short period, which costs little to draw and still makes every row different.
    """
    generator = torch.Generator().manual_seed((options.seed * 1009 + rank) * 31 + number)
    period = torch.randn(options.tokens, 128, generator=generator).bfloat16()
    x = period.repeat(1, options.hidden // 128)
    ids = torch.rand(options.tokens, options.experts, generator=generator).topk(options.topk).indices
    weights = torch.rand(options.tokens, options.topk, generator=generator)
    return Inputs(x, ids, weights)


def expert_factor(index: torch.Tensor | int) -> torch.Tensor:
    """What expert (low latency) or rank (throughput) `index` multiplies its rows by: 1, 2 or 4, exact in bf16.

    It differs, so that a row in another expert's place gives a wrong result.
    """
    return torch.pow(2.0, torch.as_tensor(index) % 3)


def num_visits(options: BenchOptions, inputs: Inputs) -> torch.Tensor:
    """bool [T, ranks]: which ranks a token visits."""
    owner = inputs.ids // (options.experts // options.ranks)
    return torch.zeros(options.tokens, options.ranks, dtype=torch.bool).scatter_(1, owner, True)


def expected_factor(options: BenchOptions, inputs: Inputs) -> torch.Tensor:
    """float32 [T, 1]: what combine must return, over x.

    Throughput: the sum of the visited ranks' factors. Low latency: the sum over k of weight times the expert's factor.
    """
    if options.mode == "throughput":
        visits = num_visits(options, inputs).float()
        return (visits * expert_factor(torch.arange(options.ranks))).sum(1, keepdim=True)
    return (inputs.weights * expert_factor(inputs.ids)).sum(1, keepdim=True)


def worst_error(out: torch.Tensor, inputs: Inputs, factor: torch.Tensor) -> float:
    """The largest error of `out` (bf16 [T, H]) relative to 1 + |expected|; another shape or a NaN is infinite."""
    if out.shape != inputs.x.shape:
        return float("inf")
    worst = 0.0
    for first in range(0, out.shape[0], 256):  # in pieces that stay in the cache
        piece = slice(first, first + 256)
        expected = inputs.x[piece].float() * factor[piece]
        error = float(((out[piece].float() - expected).abs() / (1.0 + expected.abs())).max())
        worst = max(worst, error if error == error else float("inf"))
    return worst
