"""A row once per rank: results in both modes over several ranks, and that no row crosses twice."""

from __future__ import annotations

import pytest

from tests.uccl_ep.tools.bench.exchange import exchange
from uccl_ep.tools.bench.inputs import TOLERANCE, make_inputs, num_visits
from uccl_ep.tools.bench.options import BenchOptions
from uccl_ep.tools.bench.per_rank import PerRank


@pytest.mark.parametrize("mode", ["throughput", "low-latency"])
@pytest.mark.parametrize(("ranks", "tokens", "topk"), [(2, 1, 1), (4, 13, 3), (3, 70, 6)])
def test_bench_per_rank_returns_what_the_experts_made(mode: str, ranks: int, tokens: int, topk: int) -> None:
    options = BenchOptions(mode=mode, ranks=ranks, tokens=tokens, hidden=128, topk=topk, experts=4 * ranks)
    worst, rows = exchange(PerRank, options)
    assert max(worst) < TOLERANCE
    sent = sum(int(num_visits(options, make_inputs(options, 0, number)).sum()) for number in range(2))
    back = sum(
        int(num_visits(options, make_inputs(options, rank, number))[:, 0].sum())
        for rank in range(ranks)
        for number in range(2)
    )
    assert rows == sent + back
