"""The plan's closed form is the exact count of `uccl_ep.tools.bench.model`, where every set of experts is chosen once.

Over all C(E, K) sets a mean is the expectation itself, so nothing is sampled and the two must be equal. The exact
counts are in turn those of a running job (tests/uccl_ep/cost_model/test_ours.py).
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from uccl_ep._native import RowShape
from uccl_ep.cost_model import ours, wire
from uccl_ep.cost_model.cluster import Cluster
from uccl_ep.cost_model.demand import Demand
from uccl_ep.cost_model.expected_bytes import FORMATS, Load, expect
from uccl_ep.cost_model.routing import make_routing
from uccl_ep.group.topology import Topology

# Ranks by node, whether each is a cell of its own (enable_shrink), experts, choices of a token.
SHAPES = (
    ((2, 2), False, 8, 3),
    ((2, 2), True, 8, 3),
    ((1, 1, 1), False, 9, 2),
    ((3, 2), False, 10, 4),
    ((3, 2), True, 10, 4),
    ((3, 1, 2), False, 12, 3),
    ((4,), False, 8, 2),
    ((2, 1), False, 3, 3),
)
THROUGHPUT_SCALES = {"bf16": 0, "fp8": 4, "fp8_ue8m0": 1}  # bytes of a scale of 128 channels


def group(sizes: tuple[int, ...], apart: bool) -> tuple[Topology, Cluster]:
    node_of = tuple(node for node, size in enumerate(sizes) for _ in range(size))
    return Topology(node_of, apart), Cluster(node_of, apart)


def every_set(experts: int, topk: int, ranks: int) -> list[np.ndarray]:
    """Ids [C(E, K), K] of each rank: every set of experts, once."""
    ids = np.array(list(combinations(range(experts), topk)), dtype=np.int64)
    return [ids] * ranks


def throughput_call(load: Load) -> ours.ThroughputCall:
    payload = load.hidden * (2 if load.row_format == "bf16" else 1)
    scales = -(-THROUGHPUT_SCALES[load.row_format] * load.hidden // 128 // 4) * 4
    row = RowShape(payload, scales, load.topk, has_ids=True, has_weights=True)
    return ours.ThroughputCall(load.hidden, row)


@pytest.mark.parametrize("row_format", sorted(FORMATS))
@pytest.mark.parametrize("sizes, apart, experts, topk", SHAPES)
def test_exact_low_latency_is_what_the_plan_expects(
    sizes: tuple[int, ...], apart: bool, experts: int, topk: int, row_format: str
) -> None:
    topology, cluster = group(sizes, apart)
    demand = Demand(every_set(experts, topk, cluster.num_ranks), cluster, experts)
    load = Load(len(demand.routing[0]), 384, experts, topk, "low_latency", row_format)
    load.check(cluster.num_ranks)
    call = ours.LowLatencyCall(load.hidden, row_format.replace("_", "-"))
    planned, ranks = expect(load, topology, 0.0), cluster.num_ranks
    dispatched, combined = ours.low_latency_dispatch(demand, call), ours.low_latency_combine(demand, call)
    assert planned.dispatch_bytes == pytest.approx(dispatched.num_bytes.sum() / ranks, rel=1e-12)
    assert planned.combine_bytes == pytest.approx(combined.num_bytes.sum() / ranks, rel=1e-12)
    assert planned.remote_places == pytest.approx(demand.rows.sum() / demand.tokens, rel=1e-12)
    one_row = wire.row_bytes(load.hidden, call.row_format)
    assert planned.per_expert_bytes == pytest.approx(demand.crossing.sum() * one_row / ranks, rel=1e-12)
    assert planned.received_rows == pytest.approx(demand.selections.sum() / ranks, rel=1e-12)


@pytest.mark.parametrize("row_format", sorted(THROUGHPUT_SCALES))
@pytest.mark.parametrize("sizes, apart, experts, topk", SHAPES)
def test_exact_throughput_is_what_the_plan_expects(
    sizes: tuple[int, ...], apart: bool, experts: int, topk: int, row_format: str
) -> None:
    topology, cluster = group(sizes, apart)
    demand = Demand(every_set(experts, topk, cluster.num_ranks), cluster, experts)
    load = Load(len(demand.routing[0]), 384, experts, topk, "throughput", row_format)
    load.check(cluster.num_ranks)
    call, planned, ranks = throughput_call(load), expect(load, topology, 0.0), cluster.num_ranks
    dispatched, combined = ours.throughput_dispatch(demand, call), ours.throughput_combine(demand, call)
    assert planned.dispatch_bytes == pytest.approx(dispatched.of("chunks").num_bytes.sum() / ranks, rel=1e-12)
    assert planned.combine_bytes == pytest.approx(combined.num_bytes.sum() / ranks, rel=1e-12)
    # What the plan says that it leaves out is all that it leaves out.
    left_out = dispatched.without("chunks")
    assert {flow.name for flow in left_out.flows} == {"credits", "counts", "expect headers"}


@pytest.mark.parametrize("mode", ["low_latency", "throughput"])
@pytest.mark.parametrize("ranks", [16, 32, 64])
def test_exact_counts_of_random_routes_are_near_the_plan(mode: str, ranks: int) -> None:
    """DeepSeek-V3's shape, 256 experts, top 8, nodes of 8, all writes: sampled routes differ by chance."""
    topology, cluster = group((8,) * (ranks // 8), False)
    load = Load(512 if mode == "throughput" else 128, 7168, 256, 8, mode, "fp8")
    demand = Demand(make_routing("random", ranks, load.tokens, 8, 256, 5), cluster, 256)
    planned = expect(load, topology, 0.0)
    if mode == "low_latency":
        call = ours.LowLatencyCall(7168, "fp8")
        counted = [ours.low_latency_dispatch(demand, call), ours.low_latency_combine(demand, call)]
    else:
        sizes = throughput_call(load)
        counted = [ours.throughput_dispatch(demand, sizes), ours.throughput_combine(demand, sizes)]
    for traffic, said in zip(counted, (planned.dispatch_bytes, planned.combine_bytes), strict=True):
        assert traffic.num_bytes.sum() / ranks == pytest.approx(said, rel=0.01)
