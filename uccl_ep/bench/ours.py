"""An exchange through uccl_ep: dispatch, experts that scale their rows, combine."""

from __future__ import annotations

from typing import Any

import torch

from uccl_ep.bench.inputs import Inputs, expert_factor
from uccl_ep.bench.options import BenchOptions
from uccl_ep.buffer import Buffer


class Ours:
    """A Buffer sized for the options; `dispatch` and `combine` are what is timed."""

    name = "uccl_ep"

    def __init__(self, options: BenchOptions, rank: int, group: Any) -> None:
        self._options, self._rank = options, rank
        self._low_latency = options.mode == "low-latency"
        rows = options.row_bytes + 1024
        rdma = (
            Buffer.get_low_latency_rdma_size_hint(options.tokens, options.hidden, options.ranks, options.experts)
            if self._low_latency
            else 0
        )
        # Rings that hold some hundred rows a stream; memfds, so that what is not touched costs nothing.
        nvl = 0 if self._low_latency else (8 + 4 * options.ranks) * 256 * rows // 128 * 128
        self.buffer = Buffer(
            group, nvl, rdma, low_latency_mode=self._low_latency, explicitly_destroy=True, device="cpu"
        )

    def dispatch(self, inputs: Inputs) -> Any:
        """Rows at their experts, and the handle."""
        o = self._options
        if self._low_latency:
            packed, counts, packed_handle, _, _ = self.buffer.low_latency_dispatch(
                inputs.x, inputs.ids, o.tokens, o.experts, use_fp8=False
            )
            return packed, counts, packed_handle
        ranks, nodes, experts, in_rank, _ = self.buffer.get_dispatch_layout(inputs.ids, o.experts)
        rows, _, _, _, handle, _ = self.buffer.dispatch(
            inputs.x,
            num_tokens_per_rank=ranks,
            num_tokens_per_rdma_rank=nodes,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=experts,
            topk_idx=inputs.ids,
            topk_weights=inputs.weights,
        )
        return rows, None, handle

    def experts(self, state: Any) -> None:
        """Scales the rows in place; not timed."""
        rows, counts, _ = state
        if counts is None:
            rows.mul_(expert_factor(self._rank).bfloat16())
            return
        first = self._rank * len(counts)
        for local, count in enumerate(counts.tolist()):
            rows[local, :count].mul_(expert_factor(first + local).bfloat16())

    def combine(self, inputs: Inputs, state: Any) -> torch.Tensor:
        """Combined rows, bf16 [T, H]."""
        rows, counts, handle = state
        if counts is None:
            return self.buffer.combine(rows, handle)[0]
        out, _, _ = self.buffer.low_latency_combine(rows, inputs.ids, inputs.weights, handle)
        return out

    def close(self) -> None:
        """Frees the Buffer."""
        self.buffer.destroy()
