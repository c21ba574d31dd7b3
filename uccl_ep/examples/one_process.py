"""The yardstick of the examples: all experts in one process, and rows rounded to bf16 exactly where they would travel.

Without the roundings, a choice of experts or a token that is nearly a tie comes out otherwise now and then, and nothing
after it can be compared. There is no uccl_ep in it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Round(torch.autograd.Function):
    """A tensor rounded to bf16, and so is its gradient: what travelling does to rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.to(torch.bfloat16).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad.to(torch.bfloat16).to(grad.dtype)


def travel(x: Tensor) -> Tensor:
    """x as it arrives at another rank."""
    rounded: Tensor = Round.apply(x)  # type: ignore[no-untyped-call]
    return rounded


class OneProcess(nn.Module):
    """Takes the place of a layer's experts and keeps all of them.

    Args:
        experts: the layer's own; ids from `experts.num_experts` on mean "none".
        num_ranks, ranks_per_node: over which the experts are thought to be spread.
        max_decode_tokens: calls with at most so many rows go by the rules of low latency, others by throughput's.
    """

    def __init__(self, experts: Any, num_ranks: int, ranks_per_node: int, max_decode_tokens: int = 0) -> None:
        super().__init__()
        self.experts, self.num_ranks, self.ranks_per_node = experts, num_ranks, ranks_per_node
        self.max_decode_tokens = max_decode_tokens

    def forward(self, rows: Tensor, topk_idx: Tensor, topk_weights: Tensor) -> Tensor:
        if rows.shape[0] <= self.max_decode_tokens:
            return self._low_latency(rows, topk_idx, topk_weights)
        return self._throughput(rows, topk_idx, topk_weights)

    def _throughput(self, rows: Tensor, topk_idx: Tensor, topk_weights: Tensor) -> Tensor:
        """Rounded: rows on their way out, each rank's weighted sum, each node's sum, and the total."""
        share = self.experts.num_experts // self.num_ranks
        sent, total = travel(rows), torch.zeros_like(rows)
        for first in range(0, self.num_ranks, self.ranks_per_node):
            at_node, inside = travel(sent), torch.zeros_like(rows)
            for rank in range(first, first + self.ranks_per_node):
                idx = torch.where(topk_idx // share == rank, topk_idx, self.experts.num_experts)
                inside = inside + travel(self.experts(travel(at_node), idx, topk_weights))
            total = total + travel(inside)
        return travel(total)

    def _low_latency(self, rows: Tensor, topk_idx: Tensor, topk_weights: Tensor) -> Tensor:
        """Rounded: rows on their way out, each expert's unweighted result, and the total."""
        sent, total = travel(rows), torch.zeros_like(rows)
        one = torch.ones_like(topk_weights[:, :1])
        for k in range(topk_idx.shape[1]):
            total = total + topk_weights[:, k : k + 1] * travel(self.experts(sent, topk_idx[:, k : k + 1], one))
        return travel(total)


def in_one_process(model: Any, num_ranks: int, ranks_per_node: int, max_decode_tokens: int = 0) -> None:
    """Puts OneProcess around the experts of every layer, in place."""
    for layer in model.model.layers:
        if hasattr(layer.mlp, "experts"):
            layer.mlp.experts = OneProcess(layer.mlp.experts, num_ranks, ranks_per_node, max_decode_tokens)
