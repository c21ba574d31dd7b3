"""The peer's permutation: every selection is sent once per rank (throughput) or once per expert (low latency)."""

from __future__ import annotations

import torch

from uccl_ep.bench.gloo import Gloo
from uccl_ep.bench.inputs import make_inputs
from uccl_ep.bench.options import BenchOptions


def test_bench_gloo_routes_once_per_rank() -> None:
    options = BenchOptions(tokens=20, hidden=128, topk=3, experts=8)
    inputs = make_inputs(options, 0)
    token, factor, sent = Gloo(options, None)._route(inputs)
    expected = [sorted({t for t in range(20) if (inputs.ids[t] // 2 == r).any()}) for r in range(4)]
    assert factor is None and sent.tolist() == [len(e) for e in expected]
    assert token.tolist() == [t for e in expected for t in e]


def test_bench_gloo_routes_once_per_expert_with_its_weight() -> None:
    options = BenchOptions(mode="low-latency", tokens=20, hidden=128, topk=3, experts=8)
    inputs = make_inputs(options, 0)
    token, factor, sent = Gloo(options, None)._route(inputs)
    assert factor is not None and int(sent.sum()) == 60
    total = torch.zeros(20).index_add_(0, token, factor)
    torch.testing.assert_close(total, inputs.weights.sum(1))
