"""An exchange through uccl_ep: dispatch, experts that return their rows, combine."""

from __future__ import annotations

import time
from typing import Any

import torch

from uccl_ep.bench.inputs import Inputs
from uccl_ep.bench.options import BenchOptions
from uccl_ep.buffer import Buffer

Times = tuple[float, float]  # seconds of dispatch, of combine


class Ours:
    """A Buffer sized for the options."""

    name = "uccl_ep"

    def __init__(self, options: BenchOptions, group: Any) -> None:
        self._options = options
        low_latency = options.mode == "low-latency"
        rows = 2 * options.hidden + 1024
        rdma = (
            Buffer.get_low_latency_rdma_size_hint(options.tokens, options.hidden, options.ranks, options.experts)
            if low_latency
            else 0
        )
        # Rings that hold some hundred rows a stream; memfds, so that what is not touched costs nothing.
        nvl = 0 if low_latency else (8 + 4 * options.ranks) * 256 * rows // 128 * 128
        self.buffer = Buffer(group, nvl, rdma, low_latency_mode=low_latency, explicitly_destroy=True)

    def exchange(self, inputs: Inputs) -> tuple[torch.Tensor, Times]:
        """(combined rows, times)."""
        return self._low_latency(inputs) if self._options.mode == "low-latency" else self._throughput(inputs)

    def _throughput(self, inputs: Inputs) -> tuple[torch.Tensor, Times]:
        begin = time.perf_counter()
        ranks, nodes, experts, in_rank, _ = self.buffer.get_dispatch_layout(inputs.ids, self._options.experts)
        rows, _, _, _, handle, _ = self.buffer.dispatch(
            inputs.x,
            num_tokens_per_rank=ranks,
            num_tokens_per_rdma_rank=nodes,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=experts,
            topk_idx=inputs.ids,
            topk_weights=inputs.weights,
        )
        middle = time.perf_counter()
        out, _, _ = self.buffer.combine(rows, handle)
        return out, (middle - begin, time.perf_counter() - middle)

    def _low_latency(self, inputs: Inputs) -> tuple[torch.Tensor, Times]:
        o = self._options
        begin = time.perf_counter()
        rows, _, handle, _, _ = self.buffer.low_latency_dispatch(
            inputs.x, inputs.ids, o.tokens, o.experts, use_fp8=False
        )
        middle = time.perf_counter()
        out, _, _ = self.buffer.low_latency_combine(rows, inputs.ids, inputs.weights, handle)
        return out, (middle - begin, time.perf_counter() - middle)

    def close(self) -> None:
        """Frees the Buffer."""
        self.buffer.destroy()
