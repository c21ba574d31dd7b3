"""The usual form of an exchange by all-to-all: a row crosses once per (token, expert), ordered by expert.

One small collective with the counts per expert, one with the rows, one back. Weights are applied where the token lives.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from uccl_ep.tools.bench.collectives import Collective
from uccl_ep.tools.bench.inputs import Inputs, expert_factor
from uccl_ep.tools.bench.options import BenchOptions
from uccl_ep.tools.bench.staging import Staging, add_rows


@dataclass
class _State:
    rows: torch.Tensor  # what the experts see; in low latency mode ordered by expert
    order: torch.Tensor  # int64: which (token, k) each sent row is
    sent: list[int]
    received: list[int]
    expert: torch.Tensor  # local expert of each row
    origin: torch.Tensor | None = None  # low latency: which received row each expert's row was


class PerExpert:
    """Rows once per (token, expert)."""

    form = "once per expert"

    def __init__(self, options: BenchOptions, rank: int, collective: Collective, staging: Staging) -> None:
        self.name = collective.family
        self._options, self._rank, self._collective, self._staging = options, rank, collective, staging
        self._local = options.experts // options.ranks

    def dispatch(self, inputs: Inputs) -> _State:
        """Rows at their experts."""
        o = self._options
        order = inputs.ids.flatten().argsort(stable=True)
        counts = torch.bincount(inputs.ids.flatten(), minlength=o.experts).int().view(o.ranks, self._local)
        arrived = torch.empty_like(counts)
        self._collective.equal(arrived, counts)
        sent, received = counts.sum(1).tolist(), arrived.sum(1).tolist()
        staged = self._staging.picked("sent", inputs.x, order // o.topk)
        rows = self._staging.rows("received", sum(received))
        self._collective.rows(rows, staged, received, sent)
        expert = torch.arange(self._local).repeat(o.ranks).repeat_interleave(arrived.flatten())
        if o.mode == "throughput":
            return _State(rows, order, sent, received, expert)
        origin = expert.argsort(stable=True)
        packed = self._staging.picked("packed", rows, origin)
        return _State(packed, order, sent, received, expert[origin], origin)

    def experts(self, state: _State) -> None:
        """Scales the rows in place; not timed."""
        if state.origin is None:
            state.rows.mul_(expert_factor(self._rank).bfloat16())
        else:
            factor = expert_factor(self._rank * self._local + state.expert)
            state.rows.mul_(factor.bfloat16().unsqueeze(1))

    def combine(self, inputs: Inputs, state: _State) -> torch.Tensor:
        """Combined rows, bf16 [T, H]."""
        o = self._options
        rows = state.rows
        if state.origin is not None:
            rows = self._staging.picked("partial", state.rows, state.origin.argsort())
        back = self._staging.rows("sent", state.order.numel())
        self._collective.rows(back, rows, state.sent, state.received)
        out = self._staging.sums(o.tokens)
        add_rows(out, back, state.order // o.topk, self._weights(inputs).flatten()[state.order])
        return self._staging.rows("out", o.tokens).copy_(out)

    def _weights(self, inputs: Inputs) -> torch.Tensor:
        """float32 [T, K]. Throughput adds a token's ranks, not its experts: each of n experts of a rank is 1 / n."""
        if self._options.mode == "low-latency":
            return inputs.weights
        owner = inputs.ids // self._local
        return 1.0 / (owner.unsqueeze(2) == owner.unsqueeze(1)).sum(2)

    def close(self) -> None:
        """Nothing to free."""
