"""Our side of a measurement, on one rank: experts that scale give back what the inputs promise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from uccl_ep.group.thread_group import ThreadGroup
from uccl_ep.tools.bench.inputs import TOLERANCE, expected_factor, make_inputs, worst_error
from uccl_ep.tools.bench.options import OUTPUTS, BenchOptions
from uccl_ep.tools.bench.ours import Ours


@pytest.mark.parametrize("outputs", OUTPUTS)
@pytest.mark.parametrize("mode", ["throughput", "low-latency"])
def test_bench_ours_returns_what_the_experts_made(mode: str, outputs: str) -> None:
    shape = BenchOptions(mode=mode, ranks=1, ranks_per_node=1, tokens=12, hidden=256, topk=2, experts=4)
    options = replace(shape, outputs=outputs)
    inputs = make_inputs(options, 0)
    side = Ours(options, 0, ThreadGroup.create(1)[0])
    state = side.dispatch(inputs)
    came = state.rows.data_ptr()
    side.experts(state)
    assert (state.rows.data_ptr() == came) == (mode == "throughput" and outputs == "shared")
    out = side.combine(inputs, state)
    side.close()
    assert worst_error(out, inputs, expected_factor(options, inputs)) < TOLERANCE
