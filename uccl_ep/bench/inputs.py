"""Inputs of an exchange, the same on every rank from the same seed, and what must come out."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from uccl_ep.bench.options import BenchOptions


@dataclass(frozen=True)
class Inputs:
    """One rank's tokens: x bf16 [T, H], ids int64 [T, K] without repeats, weights float32 [T, K]."""

    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor


def make_inputs(options: BenchOptions, rank: int) -> Inputs:
    """Random routing, as a fresh gate gives it."""
    generator = torch.Generator().manual_seed(options.seed * 1009 + rank)
    x = torch.randn(options.tokens, options.hidden, generator=generator).bfloat16()
    ids = torch.rand(options.tokens, options.experts, generator=generator).topk(options.topk).indices
    weights = torch.rand(options.tokens, options.topk, generator=generator)
    return Inputs(x, ids, weights)


def identity_result(options: BenchOptions, inputs: Inputs) -> torch.Tensor:
    """What comes back when experts return their rows unchanged: bf16 [T, H].

    Throughput: x times the number of ranks that a token visits. Low latency: the fp32 sum of weight * x over k. Nodes
    and peers round in between, so a comparison needs a tolerance of bf16's size.
    """
    x = inputs.x.float()
    if options.mode == "throughput":
        owner = inputs.ids // (options.experts // options.ranks)
        visited = torch.zeros(options.tokens, options.ranks).scatter_(1, owner, 1.0)
        return (x * visited.sum(1, keepdim=True)).bfloat16()
    return (x * inputs.weights.sum(1, keepdim=True)).bfloat16()
