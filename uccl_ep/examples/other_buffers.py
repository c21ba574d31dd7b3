"""An MoE layer's experts spread over ranks through DeepEP V2's, V2.5's and HybridEP's buffers, with gradients.

`ElasticExperts` and `HybridExperts` have the interface of ExpertParallel (expert_parallel.py): either takes the place
of a layer's experts. They differ in how rows arrive: as they were sent, with their choices beside them; or grouped by
expert, one row for each choice, as grouped matrix multiplications want them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from uccl_ep import ElasticBuffer, EPBuffer, HybridEPBuffer
from uccl_ep.examples.expert_parallel import LocalExperts, combine

Name = Literal["elastic", "ep", "hybrid"]


def make_layers(name: Name, group: Any, hidden: int, num_experts: int, max_tokens: int) -> tuple[Any, Any]:
    """(buffer, class of a layer) of V2, V2.5 or HybridEP; collective. Layers share the buffer, since they take turns.

    Args:
        group: a torch.distributed ProcessGroup. hidden: channels of a row. num_experts: of a layer, on all ranks.
        max_tokens: most rows that a rank passes to a layer.
    """
    if name == "hybrid":
        return HybridEPBuffer(group, hidden, max_tokens, num_experts // group.size()), HybridExperts
    cls = ElasticBuffer if name == "elastic" else EPBuffer
    return cls(group, num_max_tokens_per_rank=max_tokens, hidden=hidden, explicitly_destroy=True), ElasticExperts


class ElasticExperts(nn.Module):
    """Takes the place of a layer's experts, through an ElasticBuffer or an EPBuffer.

    Args:
        local: this rank's experts, ids [rank * L, (rank + 1) * L) of the layer.
        buffer: from make_layers. num_experts: of the layer, on all ranks.
    """

    def __init__(self, local: LocalExperts, buffer: ElasticBuffer | EPBuffer, num_experts: int) -> None:
        super().__init__()
        self.local, self.buffer, self.num_experts = local, buffer, num_experts
        self.num_local = num_experts // int(buffer.num_ranks)  # type: ignore[union-attr]  # EPBuffer copies it

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Rows [T, H], ids int64 [T, K], weights [T, K] -> the experts' weighted sums [T, H], in the rows' dtype."""
        received, local_idx, weights, handle = elastic_dispatch(
            hidden_states.bfloat16(), top_k_index.contiguous(), top_k_weights.float(), self.buffer, self.num_experts
        )
        local_idx = torch.where(local_idx < 0, self.num_local, local_idx)  # other ranks' experts
        results = self.local(received.to(hidden_states.dtype), local_idx, weights)
        return combine(results.bfloat16(), received, self.buffer, handle).to(hidden_states.dtype)


class HybridExperts(nn.Module):
    """The same through a HybridEPBuffer: local experts are given each row with the one expert that it is for."""

    def __init__(self, local: LocalExperts, buffer: HybridEPBuffer, num_experts: int) -> None:
        super().__init__()
        self.local, self.buffer = local, buffer

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        received, weights, counts, handle = hybrid_dispatch(
            hidden_states.bfloat16(), top_k_index.contiguous(), top_k_weights.float(), self.buffer
        )
        expert = torch.repeat_interleave(torch.arange(len(counts)), counts).unsqueeze(1)
        results = self.local(received.to(hidden_states.dtype), expert, weights.unsqueeze(1))
        return hybrid_combine(results.bfloat16(), received, self.buffer, handle).to(hidden_states.dtype)


class ElasticDispatch(torch.autograd.Function):
    """Sends rows to the ranks that hold their experts. Its backward pass is a combine."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, topk_idx: Tensor, topk_weights: Tensor, buffer: Any, num_experts: int) -> Any:
        received, local_idx, weights, handle, _ = buffer.dispatch(rows, topk_idx, topk_weights, num_experts=num_experts)
        ctx.buffer, ctx.handle = buffer, handle
        ctx.mark_non_differentiable(local_idx)
        return received, local_idx, weights, handle

    @staticmethod
    def backward(ctx: Any, grad_rows: Tensor, _idx: Any, grad_weights: Tensor, _handle: Any) -> Any:
        rows, weights, _ = ctx.buffer.combine(grad_rows.contiguous(), ctx.handle, grad_weights.float().contiguous())
        return rows, None, weights, None, None


class HybridDispatch(torch.autograd.Function):
    """As ElasticDispatch; rows come grouped by expert."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, topk_idx: Tensor, topk_weights: Tensor, buffer: HybridEPBuffer) -> Any:
        received, weights, _, counts, handle = buffer.dispatch_with_permute(
            hidden=rows, topk_idx=topk_idx, topk_weights=topk_weights
        )
        ctx.buffer, ctx.handle = buffer, handle
        ctx.save_for_backward(topk_idx)
        ctx.mark_non_differentiable(counts)
        return received, weights, counts, handle

    @staticmethod
    def backward(ctx: Any, grad_rows: Tensor, grad_weights: Tensor, _counts: Any, _handle: Any) -> Any:
        (topk_idx,) = ctx.saved_tensors
        rows, by_expert = ctx.buffer.combine_with_unpermute(
            hidden=grad_rows.contiguous(), probs=grad_weights.float().contiguous(), handle=ctx.handle
        )
        return rows, None, by_expert.gather(1, topk_idx), None


class HybridCombine(torch.autograd.Function):
    """As Combine of expert_parallel.py."""

    @staticmethod
    def forward(ctx: Any, results: Tensor, received: Tensor, buffer: HybridEPBuffer, handle: Any) -> Tensor:
        ctx.buffer, ctx.handle = buffer, handle
        return buffer.combine_with_unpermute(hidden=results, handle=handle)[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        rows = ctx.buffer.dispatch_with_permute(hidden=grad.contiguous(), handle=ctx.handle)[0]
        return rows, torch.zeros_like(rows), None, None


elastic_dispatch: Callable[..., tuple[Tensor, Tensor, Tensor, Any]] = ElasticDispatch.apply
hybrid_dispatch: Callable[..., tuple[Tensor, Tensor, Tensor, Any]] = HybridDispatch.apply
hybrid_combine: Callable[..., Tensor] = HybridCombine.apply
