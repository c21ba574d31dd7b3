# The yardstick: the same layer with all experts in one process, no uccl_ep in it. It rounds to bf16 exactly where rows
# would have travelled (into the experts, out of them, per node and in total), so that equal weights give equal bits.
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from uccl_ep.examples.expert_parallel import from_fp8, to_fp8
from uccl_ep.tools.demo.model import Experts, Routed
from uccl_ep.tools.demo.options import DemoOptions


def add_by_node(parts: Sequence[Tensor], tokens: Sequence[Tensor], num_tokens: int, options: DemoOptions) -> Tensor:
    """bf16 [num_tokens, hidden]: parts[r] (bf16 rows of rank r's experts, for tokens[r]) added in float32 inside each
    node, rounded to bf16, and the nodes' sums added in float32 and rounded again; the rule that combine promises."""
    total = torch.zeros((num_tokens, parts[0].shape[1]), dtype=torch.float32)
    for node in range(options.nodes):
        inside = torch.zeros_like(total)
        for rank, part in enumerate(parts):
            if options.node_of(rank) == node:
                inside.index_add_(0, tokens[rank], part.float())
        total += inside.to(torch.bfloat16).float()
    return total.to(torch.bfloat16)


class ToExperts(torch.autograd.Function):
    """Rows and weights of the tokens that each rank's experts would receive."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weights: Tensor, tokens: list[Tensor], masks: list[Tensor], options: DemoOptions
    ) -> tuple[Tensor, ...]:
        ctx.tokens, ctx.masks, ctx.options, ctx.num_tokens = tokens, masks, options, rows.shape[0]
        travelled = from_fp8(*to_fp8(rows)) if options.fp8 else rows
        return (*(travelled[t] for t in tokens), *(weights[t] * m[t] for t, m in zip(tokens, masks, strict=True)))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        ranks = len(ctx.tokens)
        grad_rows = add_by_node(grads[:ranks], ctx.tokens, ctx.num_tokens, ctx.options)
        grad_weights = torch.zeros((ctx.num_tokens, grads[ranks].shape[1]), dtype=torch.float32)
        for tokens, mask, grad in zip(ctx.tokens, ctx.masks, grads[ranks:], strict=True):
            grad_weights.index_add_(0, tokens, grad * mask[tokens])
        return grad_rows, grad_weights, None, None, None


class FromExperts(torch.autograd.Function):
    """Each token's sum over the ranks whose experts it visited."""

    @staticmethod
    def forward(ctx: Any, tokens: list[Tensor], num_tokens: int, options: DemoOptions, *parts: Tensor) -> Tensor:
        ctx.tokens = tokens
        return add_by_node(parts, tokens, num_tokens, options)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return (None, None, None, *(grad[tokens] for tokens in ctx.tokens))


to_experts: Callable[..., tuple[Tensor, ...]] = ToExperts.apply
from_experts: Callable[..., Tensor] = FromExperts.apply


class OneProcess:
    """The `Exchange` of a process that holds all experts and the micro-batches of all ranks.

    Attributes:
        alive: ranks whose experts take part; what is routed to others' is left out.
    """

    def __init__(self, options: DemoOptions) -> None:
        self.options = options
        self.alive = list(range(options.ranks))

    def __call__(self, batches: Sequence[Routed], experts: Experts) -> list[Tensor]:
        options = self.options
        rows, topk_idx, weights = (torch.cat(parts) for parts in zip(*batches, strict=True))
        per_rank = options.local_experts
        masks = [(topk_idx // per_rank == rank) & (rank in self.alive) for rank in range(options.ranks)]
        tokens = [mask.any(1).nonzero().squeeze(1) for mask in masks]
        sent = to_experts(rows, weights, tokens, masks, options)
        results = []
        for rank in range(options.ranks):
            begin = rank * per_rank
            local_idx = torch.where(masks[rank], topk_idx - begin, -1)[tokens[rank]]
            results.append(experts(sent[rank], local_idx, sent[options.ranks + rank], begin, begin + per_rank))
        combined = from_experts(tokens, rows.shape[0], options, *results)
        return list(torch.split(combined, [batch.rows.shape[0] for batch in batches]))
