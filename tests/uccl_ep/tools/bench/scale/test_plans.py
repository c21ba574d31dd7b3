"""What a call moves inside a node, counted by hand on one token and conserved on many."""

from __future__ import annotations

import numpy as np
import pytest

from tests.uccl_ep.tools.bench.scale.sizes import demand
from uccl_ep.cost_model.cluster import Cluster
from uccl_ep.cost_model.demand import Demand
from uccl_ep.tools.bench.scale.plans import PHASES, Plan, Shape, low_latency, throughput, wanted_rows

SHAPE = Shape(hidden=512, topk=2)
SIDES = [(low_latency, side) for side in ("upstream", "ours", "ours, by node")] + [
    (throughput, side) for side in ("upstream", "ours")
]


def one_token() -> Demand:
    """Rank 0's token visits experts of ranks 1, 2 and 3 (two of rank 3's); two ranks to a node, two experts each."""
    nothing = np.zeros((0, 4), np.int64)
    return Demand([np.asarray([[2, 4, 6, 7]]), nothing, nothing, nothing], Cluster.even(4, 2), 8)


def test_plans_wanted_rows_count_a_token_once_for_each_rank() -> None:
    assert wanted_rows(one_token())[0].tolist() == [0, 1, 1, 1]
    alone = Demand([np.asarray([[0, 1, 2]]), np.zeros((0, 3), np.int64)], Cluster.even(2, 2), 4)
    assert wanted_rows(alone).tolist() == [[1, 1], [0, 0]]
    assert alone.cluster.num_cells == 1  # left as it was


def test_plans_low_latency_by_hand() -> None:
    upstream = low_latency("upstream", "dispatch", one_token(), SHAPE, True)
    each = 16 + 512 + 16
    assert upstream.local[0].tolist() == [0, each, 0, 0] and upstream.fetch is None
    assert upstream.traffic.of("rows").writes[0].tolist() == [0, 0, 1, 2]
    ours = low_latency("ours", "dispatch", one_token(), SHAPE, True)
    assert ours.traffic.of("rows").writes[0].tolist() == [0, 0, 1, 0]  # once, to the host on its rail
    assert ours.fetch is not None and ours.fetch[0].tolist() == [0, 0, 528, 2 * 528]
    node = low_latency("ours, by node", "combine", one_token(), SHAPE, True)
    assert node.merge is not None and node.merge[2].tolist() == [3 * 1024, 0, 0, 0]  # rank 2 sums three rows for rank 0
    assert node.first is not None and node.first.writes[0, 2] == 1
    direct = low_latency("ours", "combine", one_token(), SHAPE, True)
    assert direct.traffic.of("rows").writes[:, 0].tolist() == [0, 0, 1, 2]


def test_plans_throughput_by_hand() -> None:
    for side in ("upstream", "ours"):
        dispatch = throughput(side, "dispatch", one_token(), SHAPE, True)
        assert dispatch.forward is not None and dispatch.forward[0].tolist() == [0, 0, 2 * 528, 0]  # ranks 2 and 3
        assert dispatch.local[0].tolist() == [0, 528, 0, 0] and dispatch.forwarder == (side == "upstream")
        combine = throughput(side, "combine", one_token(), SHAPE, True)
        assert combine.merge is not None and combine.merge[2].tolist() == [2 * 1024, 0, 0, 0]
        assert combine.local[1].tolist() == [1024, 0, 0, 0]


@pytest.mark.parametrize("make, side", SIDES)
@pytest.mark.parametrize("phase", PHASES)
def test_plans_conserve_rows(make: type[Plan], side: str, phase: str) -> None:
    """What a node's links carry is what its ranks want, whichever way it goes."""
    jobs = demand(8, 4)
    plan: Plan = make(side, phase, jobs, SHAPE, True)  # type: ignore[call-arg, arg-type]
    assert (plan.traffic.writes * ~jobs.cluster.is_remote == 0).all()
    assert (plan.local * jobs.cluster.is_remote == 0).all()
    wanted = jobs.selections if make is low_latency else wanted_rows(jobs)
    each = 1024 if phase == "combine" else 544 if (side, make) == ("upstream", low_latency) else 528
    inside = sum(int(part.sum()) for part in (plan.forward, plan.fetch, plan.merge) if part is not None)
    if inside:
        assert inside + int(plan.local.sum()) == int(wanted.sum()) * each
    assert plan.memory_bytes.sum() == pytest.approx(4 * int(wanted.sum()) * each)


@pytest.mark.parametrize("make, side", SIDES)
def test_plans_on_one_node_send_nothing(make: type[Plan], side: str) -> None:
    plan: Plan = make(side, "dispatch", demand(4, 4), SHAPE, True)  # type: ignore[call-arg, arg-type]
    assert not plan.traffic.writes.any() and plan.local.any()
