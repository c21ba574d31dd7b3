"""What placing experts anew costs and saves, against counts by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.uccl_ep.ranks import assert_refused
from uccl_ep.cost_model import ours, wire
from uccl_ep.cost_model.choice import Network
from uccl_ep.cost_model.cluster import Cluster, Ints
from uccl_ep.cost_model.demand import Demand
from uccl_ep.cost_model.rebalancing import Expert, Placements, moves, rebalance, step_cost
from uccl_ep.cost_model.traffic import Traffic

B = 1500
CLUSTER = Cluster.even(4, 2)
BEFORE = np.arange(8)  # rank 0 has experts 0 and 1, and so on
AFTER = np.asarray([0, 1, -1, 2, 3, -1, 4, 5, 0, 6, 7, 0])  # expert 0 is on ranks 2 and 3 too
NETWORK = Network("by hand", 0.0, 1.0, 0.0, 0.0, 10.0)  # 1,000 bytes a microsecond; 10,000 inside a node
CALL = ours.LowLatencyCall(128, "bf16")
ROW = wire.row_bytes(128, "bf16")


def sent(matrix: Ints) -> dict[tuple[int, int], int]:
    return {(int(a), int(b)): int(matrix[a, b]) for a, b in zip(*matrix.nonzero(), strict=True)}


def rows_only(demand: Demand) -> tuple[Traffic, ...]:
    return (ours.low_latency_dispatch(demand, CALL).of("rows"),)


def test_rebalancing_crosses_once_and_is_read_in_the_node() -> None:
    found = moves(BEFORE, AFTER, CLUSTER, B)
    assert sent(found.between) == {(0, 2): B}  # where rows of rank 0 land on node 1
    assert (sent(found.inside), found.copies) == ({(2, 3): B}, 2)
    apart = moves(BEFORE, AFTER, Cluster.even(4, 2, apart=True), B)
    assert (sent(apart.between), sent(apart.inside), apart.copies) == ({(0, 2): B, (0, 3): B}, {}, 2)


def test_rebalancing_takes_what_is_near_from_who_has_sent_least() -> None:
    before = np.asarray([0, 1, 0, 1, 2, 3, 4, 5])  # ranks 0 and 1 both have experts 0 and 1
    after = np.asarray([0, 1, 2, 0, 1, 4, 2, 3, 0, 4, 5, 1])
    found = moves(before, after, CLUSTER, B)
    # Expert 0 to rank 2 from rank 0, where it lands; 1 to rank 3 from rank 1, where it lands. 2 and 4 to ranks 0 and 1.
    assert sent(found.between) == {(0, 2): B, (1, 3): B, (2, 0): B, (3, 1): B}
    assert (sent(found.inside), found.copies) == ({}, 4)
    swapped = moves(BEFORE, BEFORE.reshape(4, 2)[[1, 0, 3, 2]].reshape(-1), CLUSTER, B)
    assert sent(swapped.inside) == {(0, 1): 2 * B, (1, 0): 2 * B, (2, 3): 2 * B, (3, 2): 2 * B}
    assert not swapped.between.any() and swapped.copies == 8
    shuffled = moves(BEFORE, np.asarray([1, 0, 3, 2, 5, 4, 7, 6]), CLUSTER, B)
    assert shuffled.copies == 0 and not shuffled.inside.any()  # other slots of the same rank


def test_rebalancing_where_a_row_lands_elsewhere_than_it_is_wanted() -> None:
    after = np.asarray([0, 1, -1, 2, 3, -1, 4, 5, 2, 6, 7, -1])  # rank 2 wants expert 2 of rank 1, whose rows land at 3
    found = moves(BEFORE, after, CLUSTER, B)
    assert (sent(found.between), sent(found.inside), found.copies) == ({(1, 3): B}, {(3, 2): B}, 1)


def test_rebalancing_of_a_popular_expert() -> None:
    """Two tokens of each rank choose expert 0. Before, rank 0 computes all 8; two ranks of node 1 send two rows each,
    to ranks 0 and 1. After, the second token of each rank goes to the copy on rank 2: a row each way."""
    routing = [np.zeros((2, 1), dtype=np.int64)] * 4
    before = step_cost(routing, BEFORE, CLUSTER, 8, rows_only)
    assert (before.rows.tolist(), before.wire_bytes, before.busiest_bytes) == ([8, 0, 0, 0], 4 * ROW, 2 * ROW)
    after = step_cost(routing, AFTER, CLUSTER, 8, rows_only)
    assert (after.rows.tolist(), after.wire_bytes, after.busiest_bytes) == ([4, 0, 4, 0], 4 * ROW, ROW)

    found = rebalance(routing, Placements(BEFORE, AFTER, 8, CLUSTER), rows_only, Expert(1000, 500), NETWORK)
    assert found.move_us == pytest.approx(1.5)  # 1,500 bytes between nodes; those inside take a tenth
    assert found.saved_us == pytest.approx(ROW / 1000)
    assert found.pays_after == -(-B // ROW) == 6
    slow = rebalance(routing, Placements(BEFORE, AFTER, 8, CLUSTER), rows_only, Expert(1000, 500), NETWORK, 1.0)
    assert slow.saved_us == pytest.approx(ROW / 1000 + 4) and slow.pays_after == 1
    back = rebalance(routing, Placements(AFTER, BEFORE, 8, CLUSTER), rows_only, Expert(1000), NETWORK)
    assert (back.move_us, back.moves.copies, back.pays_after) == (0.0, 0, None)


def test_rebalancing_counts_each_call_of_a_step() -> None:
    """Busiest ranks of a dispatch and of its combine are added: one comes after the other."""
    routing = [np.asarray([[4]]), np.asarray([[4]]), np.asarray([[4]]), np.asarray([[4]])]

    def both(demand: Demand) -> tuple[Traffic, ...]:
        return tuple(
            t.of("rows") for t in (ours.low_latency_dispatch(demand, CALL), ours.low_latency_combine(demand, CALL))
        )

    found = step_cost(routing, BEFORE, CLUSTER, 8, both)
    assert found.busiest_bytes == ROW + 2 * CALL.combine_bytes  # ranks 0 and 1 send one each; rank 2 sends both back
    assert found.microseconds(NETWORK, 0.5) == pytest.approx(found.busiest_bytes / 1000 + 4 * 0.5)


def test_rebalancing_size_of_an_expert() -> None:
    assert Expert.gated(7168, 2048, 1.0) == Expert(44_040_192) and Expert(3, 4).num_bytes == 7
    assert Expert.gated(8, 4, 0.5, 16.0) == Expert(48, 1536)
    assert_refused(lambda: Expert.gated(0, 4, 1.0), ["hidden", "above 0"])
    assert_refused(lambda: Expert.gated(8, 4, 1.0, -1.0), ["state", "0 or more"])
