"""The choice follows the costs that it prints."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from uccl_ep.cost_model import ours
from uccl_ep.cost_model.choice import NETWORKS, Estimate, choose, decide, node_loads, uniform_combine
from uccl_ep.cost_model.cluster import Cluster
from uccl_ep.cost_model.demand import Demand
from uccl_ep.cost_model.routing import make_routing
from uccl_ep.errors import InvalidArgument

CALL = ours.LowLatencyCall(7168)


def demand(tokens: int, topk: int, ranks: int = 16) -> Demand:
    return Demand(make_routing("random", ranks, tokens, topk, 64), Cluster.even(ranks, 8), 64)


def test_choice_many_choices_a_node_are_reduced_and_single_ones_go_straight() -> None:
    network = NETWORKS["cx7"]
    assert choose("combine", demand(64, 8), CALL, network).form == "node"
    assert choose("combine", demand(64, 1), CALL, network).form == "direct"  # nothing to reduce, a step more
    assert choose("combine", demand(1, 2), CALL, network).form == "direct"  # latency is all there is
    assert choose("dispatch", demand(64, 8), CALL, network).form == "node"


def test_choice_depends_on_the_network_it_is_made_for() -> None:
    slow_node = replace(NETWORKS["cx7"], node_gb_per_s=5.0)
    assert choose("combine", demand(64, 8), CALL, slow_node).form == "direct"
    assert choose("dispatch", demand(64, 8), CALL, slow_node).form == "direct"


def test_choice_prints_each_term_and_what_decides() -> None:
    choice = choose("combine", demand(64, 8), CALL, NETWORKS["efa"])
    assert [e.form for e in choice.estimates] == ["direct", "node"]
    direct, node = choice.estimates
    assert (direct.latency_us, node.latency_us, direct.node_us) == (10.0, 20.0, 0.0)
    assert choice.reasons[-1].startswith("node, since its ") and len(choice.reasons) == 3
    for estimate, line in zip(choice.estimates, choice.reasons, strict=False):
        assert f"{estimate.form}: {estimate.total_us:.1f} us" in line and f"{estimate.bytes_us:.1f}" in line
    assert choice.as_json()["estimates"][1]["total_us"] == node.total_us


def test_choice_ties_go_to_the_first_and_say_so() -> None:
    same = decide((Estimate("direct", 1.0, 2.0, 3.0, 0.0), Estimate("node", 1.0, 2.0, 3.0, 0.0)))
    assert same.form == "direct" and "cost the same" in same.reasons[-1]
    assert decide((Estimate("direct", 5.0, 9.0, 0.0, 0.0), Estimate("node", 8.0, 1.0, 0.0, 1.0))).form == "node"


def test_choice_counts_loads_by_who_makes_them() -> None:
    # Rank 0's token: expert 2 is at its host on node 1 (rank 2), experts 3 beside it (rank 3).
    one = Demand([np.array([[2, 3]]), *(np.zeros((0, 2), np.int64) for _ in range(3))], Cluster.even(4, 2), 4)
    assert node_loads("dispatch", one, ours.LowLatencyCall(512, "bf16")) == 1024
    assert node_loads("combine", one, ours.LowLatencyCall(512, "bf16")) == 1024
    two = Demand([np.array([[3, 3], [3, -1]]), *one.routing[1:]], Cluster.even(4, 2), 4)
    assert node_loads("combine", two, ours.LowLatencyCall(512, "fp8")) == 2 * 1024
    assert node_loads("dispatch", two, ours.LowLatencyCall(512, "fp8")) == 2 * (512 + 16)


@pytest.mark.parametrize("ranks, tokens, topk", [(16, 128, 8), (32, 128, 8), (32, 128, 2)])
def test_choice_before_anything_is_routed_is_near_what_random_routing_gives(ranks: int, tokens: int, topk: int) -> None:
    """The busiest of so many ranks has some more rows than the mean."""
    routing = make_routing("random", ranks, tokens, topk, 256)
    routed = choose("combine", Demand(routing, Cluster.even(ranks, 8), 256), CALL, NETWORKS["cx7"])
    expected = uniform_combine((tokens, 7168, 256, topk), [8] * (ranks // 8), NETWORKS["cx7"])
    for one, other in zip(expected, routed.estimates, strict=True):
        assert (one.form, one.latency_us) == (other.form, other.latency_us)
        for term in ("bytes_us", "messages_us", "node_us"):
            assert getattr(one, term) == pytest.approx(getattr(other, term), rel=0.2), term
            assert getattr(one, term) <= 1.05 * getattr(other, term), term


def test_choice_of_one_node_costs_nothing() -> None:
    choice = choose("combine", demand(8, 4, ranks=8), CALL, NETWORKS["tcp"])
    assert all(estimate.total_us == 0 for estimate in choice.estimates)


def test_choice_refuses_other_phases() -> None:
    with pytest.raises(InvalidArgument, match="phase"):
        choose("barrier", demand(1, 1), CALL, NETWORKS["tcp"])
