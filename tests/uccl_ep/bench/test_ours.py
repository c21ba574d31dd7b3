"""Our side of a measurement, on one rank: experts that scale give back what the inputs promise."""

from __future__ import annotations

import pytest

from uccl_ep.bench.inputs import TOLERANCE, expected_factor, make_inputs, worst_error
from uccl_ep.bench.options import BenchOptions
from uccl_ep.bench.ours import Ours
from uccl_ep.thread_group import ThreadGroup


@pytest.mark.parametrize("mode", ["throughput", "low-latency"])
def test_bench_ours_returns_what_the_experts_made(mode: str) -> None:
    options = BenchOptions(mode=mode, ranks=1, ranks_per_node=1, tokens=12, hidden=256, topk=2, experts=4)
    inputs = make_inputs(options, 0)
    side = Ours(options, 0, ThreadGroup.create(1)[0])
    state = side.dispatch(inputs)
    side.experts(state)
    out = side.combine(inputs, state)
    side.close()
    assert worst_error(out, inputs, expected_factor(options, inputs)) < TOLERANCE
