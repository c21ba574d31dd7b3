"""Rows, runs, streams and selections, against plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uccl_ep.cost_model.cluster import Cluster
from uccl_ep.cost_model.demand import Demand
from uccl_ep.errors import InvalidArgument


def loops(routing: list[Any], cluster: Cluster, experts: int, batch: int, channels: int) -> dict[str, Any]:
    local = experts // cluster.num_ranks
    ranks, cells = cluster.num_ranks, cluster.num_cells
    rows, runs = np.zeros((ranks, cells), int), np.zeros((ranks, cells), int)
    streams, chosen = np.zeros((ranks, channels, cells), int), np.zeros((ranks, ranks), int)
    for source, ids in enumerate(routing):
        share = -(-len(ids) // channels)
        before: set[int] = set()
        for token, row in enumerate(ids.tolist()):
            experts_here = {e for e in row if 0 <= e < experts}
            for expert in experts_here:
                chosen[source, expert // local] += 1
            there = {int(cluster.cell_of[e // local]) for e in experts_here}
            there = {cell for cell in there if cluster.is_remote_cell[source, cell]}
            for cell in there:
                rows[source, cell] += 1
                streams[source, token // share, cell] += 1
                runs[source, cell] += token % batch == 0 or cell not in before
            before = there
    return {"rows": rows, "runs": runs, "streams": streams, "selections": chosen}


@settings(max_examples=40)
@given(data=st.data())
def test_demand_is_what_loops_count(data: Any) -> None:
    ranks, per_node, local = (data.draw(st.integers(1, n)) for n in (5, 3, 3))
    apart, batch, channels, topk = data.draw(st.booleans()), *(data.draw(st.integers(1, n)) for n in (4, 5, 3))
    cluster, experts = Cluster.even(ranks, per_node, apart), ranks * local
    seed = data.draw(st.integers(0, 1 << 20))
    generator = np.random.default_rng(seed)
    routing = [generator.integers(-1, experts + 1, size=(int(generator.integers(12)), topk)) for _ in range(ranks)]
    demand, wanted = Demand(routing, cluster, experts), loops(routing, cluster, experts, batch, channels)
    assert np.array_equal(demand.rows, wanted["rows"])
    assert np.array_equal(demand.runs(batch), wanted["runs"])
    assert np.array_equal(demand.channel_rows(channels), wanted["streams"])
    assert np.array_equal(demand.selections, wanted["selections"])
    assert np.array_equal(demand.crossing, wanted["selections"] * cluster.is_remote)
    assert demand.tokens == sum(len(ids) for ids in routing)


def test_demand_experts_named_count_an_expert_once() -> None:
    routing = [np.array([[4, 5], [4, 7]]), *(np.zeros((0, 2), np.int64) for _ in range(3))]
    demand = Demand(routing, Cluster.even(4, 2), 8)
    assert demand.experts_named.tolist() == [[0, 0, 2, 1], [0] * 4, [0] * 4, [0] * 4]
    assert demand.crossing.sum() == 4 and demand.local_experts == 2


def test_demand_with_cells_shares_what_it_can() -> None:
    routing = [np.zeros((1, 1), np.int64)] * 4
    demand = Demand(routing, Cluster.even(4, 2), 4)
    assert demand.with_cells(False) is demand
    assert demand.with_cells(True).cluster.num_cells == 4
    alone = Demand(routing, Cluster.even(4, 4), 4)
    assert alone.with_cells(True) is alone


def test_demand_refuses_what_no_job_has() -> None:
    with pytest.raises(InvalidArgument, match="num_experts"):
        Demand([np.zeros((1, 1), np.int64)] * 4, Cluster.even(4, 2), 6)
    with pytest.raises(InvalidArgument, match="routing"):
        Demand([np.zeros((1, 1), np.int64)], Cluster.even(3, 1), 3)
