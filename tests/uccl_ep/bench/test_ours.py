"""Our side of a measurement, on one rank: identity experts give back what the inputs promise."""

from __future__ import annotations

import pytest
import torch

from uccl_ep.bench.inputs import identity_result, make_inputs
from uccl_ep.bench.options import BenchOptions
from uccl_ep.bench.ours import Ours
from uccl_ep.thread_group import ThreadGroup


@pytest.mark.parametrize("mode", ["throughput", "low-latency"])
def test_bench_ours_returns_the_rows_and_two_times(mode: str) -> None:
    options = BenchOptions(mode=mode, ranks=1, ranks_per_node=1, tokens=12, hidden=256, topk=2, experts=4)
    inputs = make_inputs(options, 0)
    side = Ours(options, ThreadGroup.create(1)[0])
    out, times = side.exchange(inputs)
    side.close()
    torch.testing.assert_close(out.float(), identity_result(options, inputs).float(), rtol=0.01, atol=0.01)
    assert len(times) == 2 and min(times) > 0.0
