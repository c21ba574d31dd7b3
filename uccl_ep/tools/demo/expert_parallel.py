# The routed experts of a layer spread over ranks, through the public DeepEP V1 methods of uccl_ep.Buffer in the way
# trainers call them: dispatch is the backward pass of combine, and combine the backward pass of dispatch.
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from uccl_ep.tools.demo.fp8 import from_fp8, to_fp8
from uccl_ep.tools.demo.model import Experts, Routed


class Buffer(Protocol):
    """The part of uccl_ep.Buffer that a trainer calls; tests put a plain-torch one in its place."""

    def get_dispatch_layout(self, topk_idx: Tensor, num_experts: int) -> Any: ...

    @property
    def dispatch(self) -> Callable[..., Any]: ...

    def combine(self, x: Tensor, handle: Any, topk_weights: Tensor | None = None) -> Any: ...

    def stats(self) -> dict[str, Any]: ...

    def destroy(self) -> None: ...


class Dispatch(torch.autograd.Function):
    """Sends each token's row to the ranks that hold its experts."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, topk_idx: Tensor, topk_weights: Tensor, buffer: Buffer, num_experts: int, fp8: bool
    ) -> tuple[Tensor, Tensor, Tensor, Any]:
        per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_idx, num_experts)
        received, received_idx, received_weights, _, handle, _ = buffer.dispatch(
            to_fp8(rows) if fp8 else rows,
            topk_idx=topk_idx,
            topk_weights=topk_weights,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_node,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
        )
        if fp8:
            received = from_fp8(*received)
        ctx.buffer, ctx.handle = buffer, handle
        ctx.mark_non_differentiable(received_idx)
        return received, received_idx, received_weights, handle

    @staticmethod
    def backward(ctx: Any, grad_rows: Tensor, _idx: Any, grad_weights: Tensor, _handle: Any) -> Any:
        grad_rows, grad_weights, _ = ctx.buffer.combine(
            grad_rows.contiguous(), ctx.handle, topk_weights=grad_weights.float().contiguous()
        )
        return grad_rows, None, grad_weights, None, None, None


class Combine(torch.autograd.Function):
    """Adds up, for each token, the rows that came back from the ranks it was sent to."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, buffer: Buffer, handle: Any) -> Tensor:
        ctx.buffer, ctx.handle = buffer, handle
        combined: Tensor = buffer.combine(rows, handle)[0]
        return combined

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        # The routing has not changed since the forward pass: the handle saves the layout and the count exchange.
        grad_rows = ctx.buffer.dispatch(grad.contiguous(), handle=ctx.handle)[0]
        return grad_rows, None, None


dispatch_rows: Callable[..., tuple[Tensor, Tensor, Tensor, Any]] = Dispatch.apply
combine_rows: Callable[..., Tensor] = Combine.apply


class ExpertParallel:
    """The `Exchange` of a rank that holds some of each layer's experts and one micro-batch."""

    def __init__(self, buffer: Buffer, num_experts: int, fp8: bool) -> None:
        self.buffer, self.num_experts, self.fp8 = buffer, num_experts, fp8

    def __call__(self, batches: Sequence[Routed], experts: Experts) -> list[Tensor]:
        (batch,) = batches
        rows, local_idx, weights, handle = dispatch_rows(
            batch.rows, batch.topk_idx, batch.topk_weights, self.buffer, self.num_experts, self.fp8
        )
        results = experts(rows, local_idx, weights, 0, len(experts.up))
        return [combine_rows(results, self.buffer, handle)]
