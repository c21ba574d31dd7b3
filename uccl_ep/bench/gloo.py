"""The same exchange through torch.distributed.all_to_all_single on gloo: what a user without an EP library writes.

The stronger of the usual forms: a row is sent once per rank in throughput mode and once per (token, expert) only where
the output needs it (low latency, whose layout has a row per expert).
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist

from uccl_ep.bench.inputs import Inputs
from uccl_ep.bench.options import BenchOptions
from uccl_ep.bench.ours import Times


class Gloo:
    """Permute, exchange counts, exchange rows, and back."""

    name = "gloo all_to_all"

    def __init__(self, options: BenchOptions, group: Any) -> None:
        self._options, self._group = options, group
        self._local = options.experts // options.ranks

    def exchange(self, inputs: Inputs) -> tuple[torch.Tensor, Times]:
        """(combined rows, times)."""
        begin = time.perf_counter()
        token, factor, sent = self._route(inputs)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self._group)
        split_out, split_in = received.tolist(), sent.tolist()
        rows = torch.empty(sum(split_out), self._options.hidden, dtype=torch.bfloat16)
        dist.all_to_all_single(rows, inputs.x[token], split_out, split_in, group=self._group)
        middle = time.perf_counter()
        back = torch.empty(token.numel(), self._options.hidden, dtype=torch.bfloat16)
        dist.all_to_all_single(back, rows, split_in, split_out, group=self._group)
        values = back.float() if factor is None else back.float() * factor.unsqueeze(1)
        out = torch.zeros(self._options.tokens, self._options.hidden).index_add_(0, token, values).bfloat16()
        return out, (middle - begin, time.perf_counter() - middle)

    def _route(self, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        """(token of each row to send, its weight or None, rows per rank), ordered by destination."""
        owner = inputs.ids // self._local
        if self._options.mode == "throughput":
            visited = torch.zeros(self._options.tokens, self._options.ranks, dtype=torch.bool)
            visited.scatter_(1, owner, True)
            _, token = visited.t().nonzero(as_tuple=True)
            return token, None, visited.sum(0)
        order = inputs.ids.flatten().argsort(stable=True)
        sent = torch.bincount(owner.flatten(), minlength=self._options.ranks)
        return order // self._options.topk, inputs.weights.flatten()[order], sent

    def close(self) -> None:
        """Nothing to free."""
