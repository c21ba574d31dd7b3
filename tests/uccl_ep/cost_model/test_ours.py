"""The model's counts of our writes are those of the running product: every write, byte, command and immediate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.uccl_ep.cost_model.flows import by_flow
from tests.uccl_ep.ranks import MIB, case
from tests.uccl_ep.tools.bench.model.product import Counted, demand_of, run_low_latency, run_throughput
from uccl_ep._native import RowShape
from uccl_ep.cost_model import ours, wire
from uccl_ep.cost_model.cluster import Cluster
from uccl_ep.cost_model.demand import Demand
from uccl_ep.cost_model.traffic import Traffic
from uccl_ep.errors import InvalidArgument
from uccl_ep.reference import RandomCase

# What the low-latency calls accept; ids beyond the experts they refuse.
TRAFFIC = ("uniform", "some_unused", "duplicates", "hot_expert", "all_unused")


def assert_counted(counted: Counted, traffic: Traffic) -> None:
    """Row by row of the matrix, and the immediates by kind at their receivers."""
    assert np.array_equal(counted.writes, traffic.writes)
    assert np.array_equal(counted.num_bytes, traffic.num_bytes)
    assert np.array_equal(counted.commands, traffic.writes.sum(axis=1))
    expects = traffic.of("expect headers", "announcements").writes.sum(axis=0)
    assert np.array_equal(counted.expects, expects + np.zeros_like(counted.expects))
    assert not counted.credits.any() and not counted.sequences.any()
    assert int(counted.writes.sum()) == traffic.immediates


@pytest.fixture(autouse=True)
def _two_nodes(variables: Any) -> None:
    variables(RANKS_PER_NODE=2, TRANSPORT="loopback")


@pytest.mark.parametrize("seed, traffic", list(enumerate(TRAFFIC)))
@pytest.mark.parametrize("use_fp8", [False, True])
def test_model_low_latency_counts_are_the_products(seed: int, traffic: str, use_fp8: bool) -> None:
    c = case(40 + seed, traffic, num_experts=12, num_topk=1 + 2 * (seed % 3), hidden=512, max_tokens=70)
    demand = demand_of(c)
    call = ours.LowLatencyCall(512, "fp8" if use_fp8 else "bf16")
    dispatched, combined, again = run_low_latency(c, "dcd", use_fp8)
    assert_counted(dispatched, ours.low_latency_dispatch(demand, call))
    assert_counted(combined, ours.low_latency_combine(demand, call))
    assert_counted(again, ours.low_latency_dispatch(demand, call))


@pytest.mark.mostly_slow(quick=5)
@pytest.mark.parametrize("seed, traffic", list(enumerate(TRAFFIC)))
@pytest.mark.parametrize("ranks, per_node", [(4, 2), (5, 3), (3, 1)])
def test_model_combine_of_nodes_is_the_products(
    variables: Any, seed: int, traffic: str, ranks: int, per_node: int
) -> None:
    variables(RANKS_PER_NODE=per_node, LOW_LATENCY_COMBINE="node", LOW_LATENCY_TOPK=8)
    c = case(70 + seed, traffic, num_ranks=ranks, num_experts=3 * ranks, num_topk=5, hidden=128, max_tokens=30)
    demand, call = demand_of(c, per_node), ours.LowLatencyCall(128, "bf16")
    dispatched, combined, again = run_low_latency(c, "dcc")
    assert_counted(dispatched, ours.low_latency_dispatch(demand, call))
    assert_counted(combined, ours.low_latency_combine(demand, call, "node"))
    # Two combines in a row: the second also tells what was read, since nothing else has.
    more = ours.announcements(["dispatch", "combine", "combine"], demand.cluster)[2]
    assert_counted(again, ours.low_latency_combine(demand, call, "node") + more)


def test_model_low_latency_runs_end_where_a_batch_of_large_rows_does() -> None:
    c = case(51, "uniform", num_experts=4, num_topk=3, hidden=8192, max_tokens=60)
    call = ours.LowLatencyCall(8192, "bf16")
    assert wire.batch_tokens(8192, "bf16") == 16
    (dispatched,) = run_low_latency(c, "d")
    traffic = ours.low_latency_dispatch(demand_of(c), call)
    assert_counted(dispatched, traffic)
    assert 0 < by_flow(traffic)["rows"]["writes"] < sum(map(len, c.x))


def test_model_low_latency_uneven_nodes(variables: Any) -> None:
    variables(RANKS_PER_NODE=3)
    c = case(52, "some_unused", num_ranks=5, num_experts=10, num_topk=4, hidden=128, max_tokens=40)
    demand, call = demand_of(c, 3), ours.LowLatencyCall(128, "bf16")
    dispatched, combined = run_low_latency(c, "dc")
    assert_counted(dispatched, ours.low_latency_dispatch(demand, call))
    assert_counted(combined, ours.low_latency_combine(demand, call))


def test_model_announcements_come_when_nothing_else_tells() -> None:
    c = case(53, num_experts=4, hidden=128, max_tokens=8)
    demand, call, phases = demand_of(c), ours.LowLatencyCall(128, "bf16"), "ddddcd"
    extra = ours.announcements(["dispatch" if p == "d" else "combine" for p in phases], demand.cluster)
    assert [int(t.writes.sum()) > 0 for t in extra] == [False, True, True, True, False, False]
    for counted, phase, more in zip(run_low_latency(c, phases), phases, extra, strict=True):
        make = ours.low_latency_dispatch if phase == "d" else ours.low_latency_combine
        assert_counted(counted, make(demand, call) + more)


def assert_streams(counted: Counted, traffic: Traffic) -> None:
    """Everything but credits exactly; credits within their bounds, and exactly when each stream has one chunk."""
    assert np.array_equal(counted.num_bytes, traffic.num_bytes)
    fixed, least = traffic.without("credits"), traffic.of("credits").writes
    credits = counted.writes - fixed.writes
    assert (credits >= least).all()
    assert np.array_equal(credits.sum(axis=0), counted.credits)
    chunks = traffic.of("chunks").writes
    assert (credits <= chunks.T).all() and credits.sum() <= ours.most_credits(traffic)
    assert np.array_equal(counted.sequences, chunks.sum(axis=0))
    if np.array_equal(least, chunks.T):
        assert np.array_equal(counted.writes, traffic.writes)


def calls(c: RandomCase, unit_bytes: int, weights: bool, first: bool) -> ours.ThroughputCall:
    hidden, topk = c.shape.hidden, c.shape.num_topk
    row = RowShape(2 * hidden, topk=topk, has_ids=True, has_weights=True)
    # A cached call sends neither ids nor weights, in as many channels as the handle's.
    call = ours.ThroughputCall(hidden, row, 2, unit_bytes, weights)
    if first:
        return call
    assert call.fitted_channels == 2
    return ours.ThroughputCall(hidden, RowShape(2 * hidden), 2, unit_bytes, weights)


@pytest.mark.parametrize("seed, tokens, nvl", [(60, 6, 2 * MIB), (61, 90, 2 * MIB), (62, 200, MIB // 2)])
def test_model_throughput_counts_are_the_products(seed: int, tokens: int, nvl: int) -> None:
    c = case(seed, "mixed", num_experts=8, num_topk=3, hidden=256, max_tokens=tokens)
    demand = demand_of(c)
    run = run_throughput(c, nvl)
    whole, bare = calls(c, run.unit_bytes, True, True), calls(c, run.unit_bytes, False, False)
    dispatched, combined, cached, plain = run.counted
    assert_streams(dispatched, ours.throughput_dispatch(demand, whole))
    assert_streams(combined, ours.throughput_combine(demand, whole))
    assert_streams(cached, ours.throughput_dispatch(demand, bare, counted=False))
    assert_streams(plain, ours.throughput_combine(demand, bare))


def test_model_cells_of_one_rank_are_what_shrink_sends() -> None:
    c = case(63, "some_unused", num_experts=8, num_topk=3, hidden=256, max_tokens=50)
    demand = demand_of(c, apart=True)
    run = run_throughput(c, enable_shrink=True)
    call = calls(c, run.unit_bytes, True, True)
    assert_streams(run.counted[0], ours.throughput_dispatch(demand, call))
    assert_streams(run.counted[1], ours.throughput_combine(demand, call))


def test_model_one_node_sends_nothing() -> None:
    c = case(64, "uniform", hidden=128)
    demand, call = demand_of(c, 4), ours.LowLatencyCall(128)
    for traffic in (
        ours.low_latency_dispatch(demand, call),
        ours.low_latency_combine(demand, call),
        ours.low_latency_combine(demand, call, "node"),
        ours.throughput_dispatch(demand, ours.ThroughputCall(128, RowShape(256))),
    ):
        assert not traffic.writes.any() and not traffic.num_bytes.any() and traffic.immediates == 0


def test_model_combine_of_nodes_by_hand() -> None:
    # 2 nodes of 2 ranks, an expert a rank. Rank 0 has two tokens: one visits both ranks of node 1, one nobody there.
    routing = [np.array([[2, 3], [1, -1]]), *(np.zeros((0, 2), np.int64) for _ in range(3))]
    demand, call = Demand(routing, Cluster.even(4, 2), 4), ours.LowLatencyCall(128, "bf16")
    direct = by_flow(ours.low_latency_combine(demand, call))
    assert direct == {"rows": {"writes": 2, "bytes": 512}, "expect headers": {"writes": 8, "bytes": 384}}
    node = ours.low_latency_combine(demand, call, "node")
    assert node.of("rows").writes.tolist() == [[0] * 4, [0] * 4, [1, 0, 0, 0], [0] * 4]
    assert node.of("rows").num_bytes.sum() == 256
    assert by_flow(node.of("weights"))["weights"] == {"writes": 4, "bytes": 48 + 3 * 16}
    assert node.of("expect headers").writes.sum() == 12  # with the sums, and to every rank of the other node
    assert ours.LowLatencyCall(512, combine_format="logfmt").combine_bytes == 16 + 16 + 640
    assert ours.LowLatencyCall(512, combine_format="fp8").combine_bytes == 512 + 16


def test_model_combine_refuses_other_forms() -> None:
    demand = Demand([np.zeros((1, 1), np.int64)], Cluster.even(1, 1), 1)
    with pytest.raises(InvalidArgument, match="form.*direct"):
        ours.low_latency_combine(demand, ours.LowLatencyCall(128), "tree")
