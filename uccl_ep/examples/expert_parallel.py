"""An MoE layer's experts spread over ranks: throughput mode for prefill and training, low latency for decoding.

`ExpertParallel` has the interface that transformers gives every model's experts, (rows, top-k ids, top-k weights) ->
rows, so it takes their place and the rest of the model stays as it is. Copy this file; nothing else here is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from uccl_ep import Buffer

Mode = Literal["throughput", "low_latency"]
LocalExperts = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(rows [n, H], local ids [n, K] where the number of local experts means "not here", weights [n, K]) -> [n, H]."""
FP8_BLOCK, E4M3_MAX = 128, 448.0


def make_buffer(group: Any, hidden: int, num_experts: int, max_decode_tokens: int) -> Buffer:
    """A Buffer for both modes; collective.

    Args:
        group: a torch.distributed ProcessGroup.
        hidden: channels of a row.
        num_experts: of a layer, on all ranks together.
        max_decode_tokens: most rows that a rank passes to a low-latency call (its batch, when it decodes).
    """
    configs = [Buffer.get_dispatch_config(group.size()), Buffer.get_combine_config(group.size())]
    throughput = max(config.get_nvl_buffer_size_hint(hidden * 2, group.size()) for config in configs)
    low_latency = Buffer.get_low_latency_rdma_size_hint(max_decode_tokens, hidden, group.size(), num_experts)
    return Buffer(group, throughput, low_latency, low_latency_mode=True, explicitly_destroy=True)


class ExpertParallel(nn.Module):
    """Takes the place of a layer's experts; every rank of the group must call it equally often, also without rows.

    Args:
        local: this rank's experts, ids [rank * L, (rank + 1) * L) of the layer.
        buffer: from make_buffer; layers share it, since they take turns.
        num_experts: of the layer, on all ranks.
        max_decode_tokens: as given to make_buffer.
        fp8: rows travel to the experts as e4m3 with a scale for 128 channels; back they come as bf16.

    Attributes:
        mode: "throughput" has gradients; "low_latency" has none, and is for few rows.
    """

    def __init__(
        self, local: LocalExperts, buffer: Buffer, num_experts: int, max_decode_tokens: int, fp8: bool = False
    ) -> None:
        super().__init__()
        self.local, self.buffer, self.fp8 = local, buffer, fp8
        self.num_experts, self.num_local = num_experts, num_experts // buffer.group_size
        self.max_decode_tokens = max_decode_tokens
        self.mode: Mode = "throughput"

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Rows [T, H], ids int64 [T, K], weights [T, K] -> the experts' weighted sums [T, H], in the rows' dtype."""
        run = self._throughput if self.mode == "throughput" else self._low_latency
        return run(hidden_states, top_k_index.contiguous(), top_k_weights.float())

    def _throughput(self, rows: Tensor, topk_idx: Tensor, topk_weights: Tensor) -> Tensor:
        received, local_idx, weights, handle = dispatch(
            rows.to(torch.bfloat16), topk_idx, topk_weights, self.buffer, self.num_experts, self.fp8
        )
        # Ids of other ranks' experts arrive as -1.
        local_idx = torch.where(local_idx < 0, self.num_local, local_idx)
        results = self.local(received.to(rows.dtype), local_idx, weights)
        return combine(results.to(torch.bfloat16), received, self.buffer, handle).to(rows.dtype)

    @torch.no_grad()
    def _low_latency(self, rows: Tensor, topk_idx: Tensor, topk_weights: Tensor) -> Tensor:
        packed, counts, handle, _, receive = self.buffer.low_latency_dispatch(
            rows.to(torch.bfloat16),
            topk_idx,
            self.max_decode_tokens,
            self.num_experts,
            use_fp8=self.fp8,
            return_recv_hook=True,
        )
        assert receive is not None  # return_recv_hook=True; whatever need not wait for the rows can run before it
        receive()
        # Rows come grouped by expert [L, N * M, H]; only the first counts[e] of expert e are there.
        present = [(expert, slice(0, count)) for expert, count in enumerate(counts.tolist())]
        # Weights are applied by combine: here each row passes its one expert with weight 1.
        data = from_fp8(*packed) if isinstance(packed, tuple) else packed
        inputs = torch.cat([data[expert, rows_of] for expert, rows_of in present]).to(rows.dtype)
        idx = torch.repeat_interleave(torch.arange(self.num_local), counts.long()).unsqueeze(1)
        results = self.local(inputs, idx, torch.ones(idx.shape)).to(torch.bfloat16)
        outputs = torch.empty(data.shape, dtype=torch.bfloat16)
        parts = torch.split(results, counts.tolist())
        for (expert, rows_of), part in zip(present, parts, strict=True):
            outputs[expert, rows_of] = part
        return self.buffer.low_latency_combine(outputs, topk_idx, topk_weights, handle)[0].to(rows.dtype)


class Dispatch(torch.autograd.Function):
    """Sends rows to the ranks that hold their experts. Its backward pass is a combine."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, topk_idx: Tensor, topk_weights: Tensor, buffer: Buffer, num_experts: int, fp8: bool
    ) -> tuple[Any, ...]:
        per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_idx, num_experts)
        received, local_idx, weights, _, handle, _ = buffer.dispatch(
            to_fp8(rows) if fp8 else rows,
            topk_idx=topk_idx,
            topk_weights=topk_weights,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_node,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
        )
        ctx.buffer, ctx.handle = buffer, handle
        ctx.mark_non_differentiable(local_idx)
        return from_fp8(*received) if fp8 else received, local_idx, weights, handle

    @staticmethod
    def backward(ctx: Any, grad_rows: Tensor, _idx: Any, grad_weights: Tensor, _handle: Any) -> Any:
        rows, weights, _ = ctx.buffer.combine(
            grad_rows.contiguous(), ctx.handle, topk_weights=grad_weights.float().contiguous()
        )
        return rows, None, weights, None, None, None


class Combine(torch.autograd.Function):
    """Adds up each token's results, by a Buffer of V1 or V2. Its backward pass is a dispatch with the same handle.

    `received` only ties the results to the dispatch: a rank whose experts got no row must take part in its backward
    exchange all the same, because the other ranks wait for it there.
    """

    @staticmethod
    def forward(ctx: Any, results: Tensor, received: Tensor, buffer: Any, handle: Any) -> Tensor:
        ctx.buffer, ctx.handle = buffer, handle
        combined: Tensor = buffer.combine(results, handle)[0]
        return combined

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        rows = ctx.buffer.dispatch(grad.contiguous(), handle=ctx.handle)[0]
        return rows, torch.zeros_like(rows), None, None


dispatch: Callable[..., tuple[Tensor, Tensor, Tensor, Any]] = Dispatch.apply
combine: Callable[..., Tensor] = Combine.apply


def to_fp8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """bf16 [n, H] -> (e4m3 [n, H], float32 scales [n, H / 128]): in throughput mode the cast is the caller's."""
    blocks = rows.float().view(*rows.shape[:-1], rows.shape[-1] // FP8_BLOCK, FP8_BLOCK)
    amax = blocks.abs().amax(dim=-1, keepdim=True).clamp(min=1e-4)  # a block of zeros must not divide by zero
    # Tensor by tensor on purpose: a Python scalar numerator would become reciprocal and multiply, one bit off.
    quantised = (blocks * (torch.full_like(amax, E4M3_MAX) / amax)).to(torch.float8_e4m3fn)
    return quantised.flatten(-2), (amax / E4M3_MAX).squeeze(-1)


def from_fp8(quantised: Tensor, scales: Tensor) -> Tensor:
    """(e4m3 [..., H], float32 [..., H / 128]) -> bf16 [..., H]."""
    blocks = quantised.float().view(*scales.shape, FP8_BLOCK) * scales.unsqueeze(-1)
    return blocks.flatten(-2).to(torch.bfloat16)
