"""FlashInfer's `moe_ep` on a Buffer: a communication backend named `uccl_ep` in its registry.

Call `register()`, then ask FlashInfer for it: `SplitConfig(comm="uccl_ep")`, or `create_communication(..., "uccl_ep")`.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from uccl_ep.drop_in.row_exchange import make_buffer, send_rows
from uccl_ep.errors import Described, NotSupported, refuse

NAME = "uccl_ep"
_SCALE_WORD = 4  # a Buffer carries scales in words of so many bytes


@functools.cache
def register() -> None:
    """Adds the backend to FlashInfer's registry; idempotent. Imports flashinfer, whose release must have `moe_ep`."""
    from flashinfer.moe_ep import MoEEpCommunication, MoEEpDispatchResult, register_communication

    @register_communication(NAME)
    class UcclEpCommunication(MoEEpCommunication):  # type: ignore[misc]  # FlashInfer is not there for mypy
        """Rank-major: N * tokens_per_rank rows, those of ascending ranks first, then rows without a token."""

        supports_cuda_graph = False  # a captured pair would need its handle for as long as the graph

        def __init__(self, bootstrap: Any, params: Any, config: Any = None) -> None:
            if params.token_dtype != torch.bfloat16:
                refuse("dtype", params.token_dtype, "torch.bfloat16, which combine adds up")
            super().__init__(bootstrap, params)
            group = bootstrap.process_group or torch.distributed.group.WORLD
            self.buffer = make_buffer(group, max(params.hidden_size * 2, params.dispatch_bytes_per_token))
            self._handle: Any = None

        @classmethod
        def is_platform_supported(cls) -> bool:
            return True

        def dispatch(
            self,
            hidden_states: Tensor,
            topk_ids: Tensor,
            topk_weights: Tensor | None = None,
            *,
            hidden_states_scale: Tensor | None = None,
            max_tokens_per_rank: int | None = None,
            eplb_local_stats: Tensor | None = None,
        ) -> Any:
            if eplb_local_stats is not None:
                raise NotSupported("uccl_ep does not gather expert-load statistics: gather eplb_local_stats apart")
            most = self.params.max_tokens_per_rank if max_tokens_per_rank is None else max_tokens_per_rank
            if hidden_states.shape[0] > most:
                refuse("hidden_states", hidden_states, f"of at most {most} rows, as max_tokens_per_rank says")
            ids = topk_ids.long().masked_fill(topk_ids == self.params.invalid_expert_id, -1).contiguous()
            x, experts = with_scales(hidden_states, hidden_states_scale), self.params.num_experts
            weights = torch.ones(ids.shape, device=ids.device) if topk_weights is None else topk_weights
            sent = send_rows(self.buffer, x, ids, weights, experts, self.ep_size * most)
            received, local, received_weights, self._handle = sent
            rows, scales = received if isinstance(received, tuple) else (received, None)
            everywhere = local + self.ep_rank * self.num_local_experts
            if scales is not None and hidden_states_scale is not None:
                scales = scales.contiguous().view(hidden_states_scale.dtype)
            return MoEEpDispatchResult(
                hidden_states=rows.view(hidden_states.dtype),
                topk_ids=everywhere.masked_fill(local < 0, self.params.invalid_expert_id).to(topk_ids.dtype),
                topk_weights=None if topk_weights is None else received_weights,
                tokens_per_rank=most,
                hidden_states_scale=scales,
            )

        def combine(self, expert_output: Tensor, *, output: Tensor | None = None) -> Tensor:
            handle, self._handle = self._handle, None
            if handle is None:
                refuse("combine", Described("one without a dispatch"), "called once after each dispatch")
            return self.buffer.combine(expert_output.flatten(0, -2).contiguous(), handle, out=output)[0]

        def destroy(self) -> None:
            self.buffer.destroy()


def with_scales(rows: Tensor, scales: Tensor | None) -> Any:
    """What Buffer.dispatch takes: rows, or (rows, scales [T, S] in words).

    Args:
        rows: bf16 [T, H], or quantized ones of one byte. scales: [T, *] of any dtype, or None.

    Raises:
        InvalidArgument: a row's scales fill no whole words.
    """
    if scales is None:
        return rows.contiguous()
    row_bytes = scales.shape[1] * scales.element_size()
    if row_bytes % _SCALE_WORD:
        refuse("hidden_states_scale", scales, f"rows of a multiple of {_SCALE_WORD} bytes")
    words = scales.contiguous()
    return rows.contiguous(), words if words.dtype == torch.float32 else words.view(torch.int32)
