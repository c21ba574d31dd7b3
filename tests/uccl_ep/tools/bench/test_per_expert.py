"""A row once per expert: results in both modes over several ranks, and how many rows cross."""

from __future__ import annotations

import pytest

from tests.uccl_ep.tools.bench.exchange import exchange
from uccl_ep.tools.bench.inputs import TOLERANCE, make_inputs
from uccl_ep.tools.bench.options import BenchOptions
from uccl_ep.tools.bench.per_expert import PerExpert


@pytest.mark.parametrize("mode", ["throughput", "low-latency"])
@pytest.mark.parametrize(("ranks", "tokens", "topk"), [(2, 1, 1), (4, 13, 3), (3, 70, 6)])
def test_bench_per_expert_returns_what_the_experts_made(mode: str, ranks: int, tokens: int, topk: int) -> None:
    options = BenchOptions(mode=mode, ranks=ranks, tokens=tokens, hidden=128, topk=topk, experts=4 * ranks)
    worst, rows = exchange(PerExpert, options)
    assert max(worst) < TOLERANCE
    sets = [make_inputs(options, rank, number) for rank in range(ranks) for number in range(2)]
    assert rows == 2 * tokens * topk + sum(int((inputs.ids < 4).sum()) for inputs in sets)  # rank 0 has experts 0 to 3
