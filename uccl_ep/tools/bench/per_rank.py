"""The stronger form of an exchange by all-to-all: a row crosses once per (token, rank), counts and routing before it.

Two collectives out (a fixed block of routing, then rows), one back. In low latency mode the receiver copies rows into
an expert-major layout and, on the way back, adds a token's weighted rows before they are sent: one row crosses back.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from uccl_ep.tools.bench.collectives import Collective
from uccl_ep.tools.bench.inputs import Inputs, expert_factor, num_visits
from uccl_ep.tools.bench.options import BenchOptions
from uccl_ep.tools.bench.staging import Staging, add_rows


@dataclass
class _State:
    rows: torch.Tensor  # what the experts see: [n, H], in low latency mode ordered by expert
    token: torch.Tensor  # int64: whose row each sent row is
    sent: list[int]
    received: list[int]
    origin: torch.Tensor | None = None  # low latency: which received row each expert's row came from
    expert: torch.Tensor | None = None  # its local expert
    weight: torch.Tensor | None = None


class PerRank:
    """Rows once per (token, rank)."""

    form = "once per rank"

    def __init__(self, options: BenchOptions, rank: int, collective: Collective, staging: Staging) -> None:
        self.name = collective.family
        self._options, self._rank, self._collective, self._staging = options, rank, collective, staging
        self._local = options.experts // options.ranks
        # A line of counts, then for every row its local experts (or -1) and the bits of their weights.
        self._blocks = torch.empty(options.ranks, options.tokens + 1, 2 * options.topk, dtype=torch.int32)
        self._arrived = torch.empty_like(self._blocks)

    def dispatch(self, inputs: Inputs) -> _State:
        """Rows at their ranks, with routing."""
        visits = num_visits(self._options, inputs)
        rank, token = visits.t().nonzero(as_tuple=True)
        sent = visits.sum(0)
        self._fill_blocks(inputs, rank, token, sent)
        self._collective.equal(self._arrived, self._blocks)
        received = self._arrived[:, 0, 0].tolist()
        staged = self._staging.picked("sent", inputs.x, token)
        rows = self._staging.rows("received", sum(received))
        counts = sent.tolist()
        self._collective.rows(rows, staged, received, counts)
        state = _State(rows, token, counts, received)
        if self._options.mode == "low-latency":
            self._lay_out(state)
        return state

    def _fill_blocks(self, inputs: Inputs, rank: torch.Tensor, token: torch.Tensor, sent: torch.Tensor) -> None:
        topk = self._options.topk
        self._blocks[:, 0, 0] = sent.int()
        position = torch.arange(token.numel()) - (sent.cumsum(0) - sent)[rank]
        local = inputs.ids[token] - (rank * self._local).unsqueeze(1)
        here = (local >= 0) & (local < self._local)
        self._blocks[rank, position + 1, :topk] = torch.where(here, local, -1).int()
        self._blocks[rank, position + 1, topk:] = inputs.weights[token].view(torch.int32)

    def _lay_out(self, state: _State) -> None:
        """Copies every received row to each of its experts here."""
        topk = self._options.topk
        routing = torch.cat([block[1 : count + 1] for block, count in zip(self._arrived, state.received, strict=True)])
        expert = routing[:, :topk]
        origin, k = (expert >= 0).nonzero(as_tuple=True)
        order = expert[origin, k].argsort(stable=True)
        origin, k = origin[order], k[order]
        state.origin, state.expert = origin, expert[origin, k]
        state.weight = routing[:, topk:][origin, k].view(torch.float32)
        state.rows = self._staging.picked("packed", state.rows, origin)

    def experts(self, state: _State) -> None:
        """Scales the rows in place; not timed."""
        if state.expert is None:
            state.rows.mul_(expert_factor(self._rank).bfloat16())
        else:
            factor = expert_factor(self._rank * self._local + state.expert)
            state.rows.mul_(factor.bfloat16().unsqueeze(1))

    def combine(self, inputs: Inputs, state: _State) -> torch.Tensor:
        """Combined rows, bf16 [T, H]."""
        rows = state.rows
        if state.origin is not None:
            partial = self._staging.sums(sum(state.received))
            add_rows(partial, rows, state.origin, state.weight)
            rows = self._staging.rows("partial", len(partial)).copy_(partial)
        back = self._staging.rows("sent", state.token.numel())
        self._collective.rows(back, rows, state.sent, state.received)
        out = self._staging.sums(self._options.tokens)
        add_rows(out, back, state.token, None)
        return self._staging.rows("out", len(out)).copy_(out)

    def close(self) -> None:
        """Nothing to free."""
