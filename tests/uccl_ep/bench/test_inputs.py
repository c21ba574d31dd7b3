"""Inputs are reproducible, and the expected result is what identity experts give."""

from __future__ import annotations

import pytest
import torch

from uccl_ep.bench.inputs import identity_result, make_inputs
from uccl_ep.bench.options import BenchOptions

SMALL = BenchOptions(tokens=9, hidden=128, topk=3, experts=8)


def test_bench_inputs_depend_on_rank_and_seed_only() -> None:
    first, again, other = make_inputs(SMALL, 1), make_inputs(SMALL, 1), make_inputs(SMALL, 2)
    assert torch.equal(first.x, again.x) and torch.equal(first.ids, again.ids)
    assert not torch.equal(first.x, other.x)
    assert all(len(set(row)) == SMALL.topk for row in first.ids.tolist())


@pytest.mark.parametrize("mode", ["throughput", "low-latency"])
def test_bench_identity_result_by_hand(mode: str) -> None:
    options = BenchOptions(mode=mode, tokens=4, hidden=128, topk=3, experts=8)
    inputs = make_inputs(options, 0)
    result = identity_result(options, inputs)
    for token in range(options.tokens):
        visited = len({e // 2 for e in inputs.ids[token].tolist()})
        factor = visited if mode == "throughput" else sum(inputs.weights[token].tolist())
        torch.testing.assert_close(result[token].float(), inputs.x[token].float() * factor, rtol=0.01, atol=0.01)
