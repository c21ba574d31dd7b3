"""Inputs of fixed sizes for recorded graphs, whose tensors stay while their values change; and what must come out."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from uccl_ep import reference

Tensor = torch.Tensor


@dataclass(frozen=True)
class Sizes:
    """The same for every replay."""

    ranks: int
    tokens: int = 8
    hidden: int = 256
    experts: int = 8
    topk: int = 3
    ranks_per_node: int | None = None

    @property
    def local_experts(self) -> int:
        return self.experts // self.ranks


@dataclass(frozen=True, eq=False)
class Values:
    """Of all ranks, for one replay: inputs, expert outputs, and the reference's results."""

    x: list[Tensor]
    ids: list[Tensor]
    weights: list[Tensor]
    outputs: list[Tensor]
    received: list[reference.LowLatencyReceived] | list[reference.ThroughputReceived]
    combined: list[Tensor]


def _inputs(sizes: Sizes, seed: int, ids_seed: int) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    generator, routing = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(ids_seed)
    x, ids, weights = [], [], []
    for _ in range(sizes.ranks):
        x.append(torch.randn(sizes.tokens, sizes.hidden, generator=generator).bfloat16())
        chosen = torch.rand(sizes.tokens, sizes.experts, generator=routing).topk(sizes.topk).indices
        dropped = torch.rand(sizes.tokens, sizes.topk, generator=routing) < 0.2
        ids.append(torch.where(dropped, -1, chosen))
        weights.append(torch.rand(sizes.tokens, sizes.topk, generator=generator))
    return x, ids, weights


def _rows(shape: tuple[int, ...], seed: int, rank: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed * 131 + rank)).bfloat16()


def low_latency_values(sizes: Sizes, seed: int) -> Values:
    """Everything changes from seed to seed."""
    x, ids, weights = _inputs(sizes, seed, seed)
    received = reference.low_latency_dispatch(x, ids, sizes.tokens, sizes.experts)
    shape = (sizes.local_experts, sizes.ranks * sizes.tokens, sizes.hidden)
    outputs = [_rows(shape, seed, rank) for rank in range(sizes.ranks)]
    combined = reference.low_latency_combine(outputs, ids, weights, received)
    return Values(x, ids, weights, outputs, received, combined)


def throughput_values(sizes: Sizes, seed: int, ids_seed: int) -> Values:
    """Rows are padded to the worst case; routing changes with ids_seed only."""
    x, ids, weights = _inputs(sizes, seed, ids_seed)
    layouts = [reference.dispatch_layout(i, sizes.experts, sizes.ranks, sizes.ranks_per_node) for i in ids]
    inputs = [
        reference.ThroughputInput(x[r], layouts[r].is_token_in_rank, ids[r], weights[r]) for r in range(sizes.ranks)
    ]
    worst = sizes.ranks * sizes.tokens
    received = reference.throughput_dispatch(inputs, sizes.experts, 1, worst)
    outputs = [_rows((worst, sizes.hidden), seed, rank) for rank in range(sizes.ranks)]
    combined, _ = reference.throughput_combine(outputs, received, None, None, sizes.ranks_per_node)
    return Values(x, ids, weights, outputs, received, combined)
