"""The model's cluster says what the product's Topology says: cells, hosts, who is remote."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uccl_ep.cost_model.cluster import Cluster
from uccl_ep.errors import InvalidArgument
from uccl_ep.group.topology import Topology


@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=6), apart=st.booleans())
def test_cluster_is_the_products_topology(sizes: list[int], apart: bool) -> None:
    node_of = [node for node, size in enumerate(sizes) for _ in range(size)]
    cluster, topology = Cluster(node_of, apart), Topology(tuple(node_of), apart)
    assert cluster.num_nodes == topology.num_nodes and cluster.num_cells == topology.num_cells
    assert tuple(cluster.cell_of.tolist()) == topology.cell_of
    for source in range(cluster.num_ranks):
        for reader in range(cluster.num_ranks):
            assert cluster.is_remote[source, reader] == (node_of[source] != node_of[reader])
            if cluster.is_remote[source, reader]:
                cell = cluster.cell_of[reader]
                assert cluster.is_remote_cell[source, cell]
                assert cluster.host[source, cell] == topology.read_at(source, reader)
    assert cluster.cell_sizes.sum() == cluster.num_ranks


def test_cluster_to_hosts_keeps_every_amount_of_remote_cells() -> None:
    cluster = Cluster.even(5, 2)  # nodes of 2, 2 and 1
    amounts = np.arange(15).reshape(5, 3)
    matrix = cluster.to_hosts(amounts)
    assert matrix.sum() == amounts[cluster.is_remote_cell].sum()
    assert matrix[1].tolist() == [0, 0, 0, 4, 5]  # the last node has one rank for both rails
    assert not (matrix * ~cluster.is_remote).any()
    assert cluster.once.sum(axis=1).tolist() == [2] * 5


def test_cluster_a_row_lands_on_its_sources_rail() -> None:
    assert Cluster([0, 0, 0, 1, 1, 2]).host.tolist() == [
        [0, 3, 5], [1, 4, 5], [2, 3, 5], [0, 3, 5], [1, 4, 5], [0, 3, 5],
    ]  # fmt: skip
    assert Cluster([0, 1, 1], apart=True).host.tolist() == [[0, 1, 2], [0, 1, 1], [0, 2, 2]]


def test_cluster_with_cells_changes_only_cells() -> None:
    cluster = Cluster.even(4, 2)
    apart = cluster.with_cells(True)
    assert (cluster.num_cells, apart.num_cells, apart.num_nodes) == (2, 4, 2)
    assert apart.once.sum(axis=1).tolist() == [2] * 4
    assert Cluster.even(4, 4, apart=True).num_cells == 1


def test_cluster_refuses_no_ranks() -> None:
    with pytest.raises(InvalidArgument, match="ranks_per_node"):
        Cluster.even(4, 0)
