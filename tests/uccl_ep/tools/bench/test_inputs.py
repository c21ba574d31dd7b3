"""Inputs repeat by seed and differ by rank and set; what must come out is counted by hand; errors are seen."""

from __future__ import annotations

import pytest
import torch

from uccl_ep.tools.bench.inputs import expected_factor, expert_factor, make_inputs, num_visits, worst_error
from uccl_ep.tools.bench.options import BenchOptions

SMALL = BenchOptions(tokens=9, hidden=256, topk=3, experts=8)


def test_bench_inputs_repeat_and_differ() -> None:
    first, again = make_inputs(SMALL, 1), make_inputs(SMALL, 1)
    assert torch.equal(first.x, again.x) and torch.equal(first.ids, again.ids)
    for other in (make_inputs(SMALL, 2), make_inputs(SMALL, 1, 1)):
        assert not torch.equal(first.x, other.x) and not torch.equal(first.ids, other.ids)
    assert first.x.shape == (9, 256) and all(len(set(row)) == SMALL.topk for row in first.ids.tolist())


@pytest.mark.parametrize("mode", ["throughput", "low-latency"])
def test_bench_expected_factor_by_hand(mode: str) -> None:
    options = BenchOptions(mode=mode, tokens=7, hidden=128, topk=3, experts=8)
    inputs = make_inputs(options, 0)
    factor = expected_factor(options, inputs)
    for token in range(options.tokens):
        experts, weights = inputs.ids[token].tolist(), inputs.weights[token].tolist()
        if mode == "throughput":
            by_hand = sum(2.0 ** (rank % 3) for rank in {e // 2 for e in experts})
        else:
            by_hand = sum(w * 2.0 ** (e % 3) for e, w in zip(experts, weights, strict=True))
        assert float(factor[token]) == pytest.approx(by_hand, rel=1e-6)


def test_bench_visits_are_the_owners() -> None:
    inputs = make_inputs(SMALL, 0)
    visits = num_visits(SMALL, inputs)
    assert [set(row.nonzero().flatten().tolist()) for row in visits] == [
        {e // 2 for e in r} for r in inputs.ids.tolist()
    ]


def test_bench_expert_factors_differ_between_neighbours() -> None:
    factors = expert_factor(torch.arange(6)).tolist()
    assert factors == [1.0, 2.0, 4.0, 1.0, 2.0, 4.0] and float(expert_factor(4)) == 2.0


def test_bench_worst_error_sees_a_wrong_row_a_missing_one_and_nan() -> None:
    inputs = make_inputs(BenchOptions(tokens=300, hidden=128, topk=2, experts=4), 0)
    factor = torch.full((300, 1), 2.0)
    right = (inputs.x.float() * 2.0).bfloat16()
    assert worst_error(right, inputs, factor) < 0.01
    wrong = right.clone()
    wrong[299, 5] += 1.0 + wrong[299, 5].abs()
    assert worst_error(wrong, inputs, factor) > 0.3
    wrong[299, 5] = float("nan")
    assert worst_error(wrong, inputs, factor) == float("inf")
    assert worst_error(right[:-1], inputs, factor) == float("inf")
