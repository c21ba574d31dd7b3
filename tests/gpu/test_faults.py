"""A rank that does not come: the others' kernels end at their deadline, and an exception names it."""

from __future__ import annotations

from typing import Any

import pytest

from bench.device.platforms import Platform
from tests.end_to_end.steps import LowLatencyStep, Step, ThroughputStep
from tests.end_to_end.world import World
from tests.gpu.calls import buffer_for, layout_of
from tests.gpu.fixed import Sizes, low_latency_values
from tests.gpu.places import Here, run
from uccl_ep import PeerLost, PeerTimeout

SILENT = 1
pytestmark = pytest.mark.timeout(60)


def _without_one(group: Any, platform: Platform, sizes: Sizes, mode: str) -> str:
    """What the rank was told: an exception's text. The silent rank stays until all others know."""
    rank, here, values = group.rank(), Here(platform), low_latency_values(sizes, 3)
    low = LowLatencyStep(0, sizes.tokens, sizes.hidden, sizes.local_experts)
    high = ThroughputStep(0, sizes.tokens, sizes.hidden, sizes.local_experts, sizes.topk)
    step: Step = low if mode == "low_latency" else high
    said = ""
    try:
        with buffer_for(group, platform, [step], sizes.ranks_per_node or 0) as buffer:
            x, ids, weights = (here.put(t[rank]) for t in (values.x, values.ids, values.weights))
            if mode == "low_latency":  # the first call of a size is collective
                buffer.low_latency_dispatch(x, ids, sizes.tokens, sizes.experts, use_fp8=False, return_recv_hook=True)
                platform.synchronize()
            if rank != SILENT:
                with pytest.raises((PeerTimeout, PeerLost)) as raised:
                    _call(buffer, platform, mode, (x, ids, weights), sizes)
                said = str(raised.value)
            group.barrier()
    except (PeerTimeout, PeerLost):
        pass  # the end of the Buffer tells again; the silent rank may hear of it too
    return said


def _call(buffer: Any, platform: Platform, mode: str, inputs: tuple[Any, Any, Any], sizes: Sizes) -> None:
    """A call that waits for the silent rank, and what brings its fault to the host on a GPU."""
    x, ids, weights = inputs
    if mode == "low_latency":
        buffer.low_latency_dispatch(x, ids, sizes.tokens, sizes.experts, use_fp8=False)
    else:
        arguments, _, _ = layout_of(buffer, ids, sizes.experts)
        buffer.dispatch(x, topk_idx=ids, topk_weights=weights, **arguments)
    platform.synchronize()
    buffer.get_dispatch_layout(ids, sizes.experts)  # any call looks at the fault record


@pytest.mark.parametrize(
    ("mode", "ranks_per_node"),
    [
        pytest.param("low_latency", 0, id="1 node-low_latency"),
        pytest.param("throughput", 1, id="3 nodes-throughput"),
        pytest.param("low_latency", 1, id="3 nodes-low_latency", marks=pytest.mark.slow),
        pytest.param("throughput", 0, id="1 node-throughput", marks=pytest.mark.slow),
    ],
)
def test_gpu_a_silent_rank_is_named(platform: Platform, mode: str, ranks_per_node: int) -> None:
    sizes = Sizes(3, experts=6, ranks_per_node=ranks_per_node or None)
    world = World(3, ranks_per_node, timeout_s=1.0)
    said = run(platform, world, _without_one, sizes, mode)
    for rank in (0, 2):
        assert f"rank {SILENT}" in said[rank], said[rank]
