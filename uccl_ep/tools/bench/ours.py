"""An exchange through uccl_ep: dispatch, experts that scale their rows, combine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from uccl_ep.buffer import Buffer
from uccl_ep.tools.bench.inputs import Inputs, expert_factor
from uccl_ep.tools.bench.options import BenchOptions


@dataclass
class State:
    """Of one round: rows at their experts, and from `experts` on what these return."""

    rows: torch.Tensor
    counts: torch.Tensor | None  # of each local expert; None in throughput mode
    handle: Any


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

    def dispatch(self, inputs: Inputs) -> State:
        """Rows at their experts, and the handle."""
        o = self._options
        if self._low_latency:
            packed, counts, packed_handle, _, _ = self.buffer.low_latency_dispatch(
                inputs.x, inputs.ids, o.tokens, o.experts, use_fp8=False
            )
            return State(packed, counts, packed_handle)
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
        return State(rows, None, handle)

    def experts(self, state: State) -> None:
        """Scales the rows, to where the options say; not timed."""
        if self._options.outputs == "private":
            to = torch.empty_like(state.rows)
        elif state.counts is None:
            to = state.rows
        else:
            to = self.buffer.get_next_low_latency_combine_buffer(state.handle)
        if state.counts is None:
            torch.mul(state.rows, expert_factor(self._rank).bfloat16(), out=to)
        else:
            first = self._rank * len(state.counts)
            for local, count in enumerate(state.counts.tolist()):
                factor = expert_factor(first + local).bfloat16()
                torch.mul(state.rows[local, :count], factor, out=to[local, :count])
        state.rows = to

    def combine(self, inputs: Inputs, state: State) -> torch.Tensor:
        """Combined rows, bf16 [T, H]."""
        if state.counts is None:
            return self.buffer.combine(state.rows, state.handle)[0]
        shared = self._options.outputs == "shared"
        out, _, _ = self.buffer.low_latency_combine(
            state.rows, inputs.ids, inputs.weights, state.handle, zero_copy=shared
        )
        return out

    def close(self) -> None:
        """Frees the Buffer."""
        self.buffer.destroy()
