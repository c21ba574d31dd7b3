"""Nodes of a group: every split that hosts and UCCL_EP_RANKS_PER_NODE can give."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uccl_ep import InvalidArgument
from uccl_ep.group.topology import NO_NODE, Topology, split_into_nodes

MOST = 64


def test_ranks_of_a_host_are_a_node_in_order_of_the_lowest_rank() -> None:
    topology = split_into_nodes(["b", "a", "b", "c", "a"], 0, MOST)
    assert topology.node_of == (0, 1, 0, 2, 1)
    assert [topology.members(n) for n in range(3)] == [[0, 2], [1, 4], [3]]
    assert (topology.num_ranks, topology.num_nodes, topology.sizes) == (5, 3, [2, 2, 1])


def test_ranks_per_node_cuts_a_host_in_rank_order_and_leaves_a_rest() -> None:
    topology = split_into_nodes(["h"] * 7, 3, MOST)
    assert topology.sizes == [3, 3, 1]
    assert topology.members(1) == [3, 4, 5]
    two_hosts = split_into_nodes(["x", "y"] * 3, 2, MOST)  # ranks of the hosts alternate
    assert two_hosts.node_of == (0, 1, 0, 1, 2, 3)


@pytest.mark.parametrize("ranks, sizes", [(64, [64]), (65, [33, 32]), (128, [64, 64]), (129, [43, 43, 43])])
def test_a_host_with_more_ranks_than_a_node_may_have_is_split_evenly(ranks: int, sizes: list[int]) -> None:
    assert split_into_nodes(["h"] * ranks, 0, MOST).sizes == sizes


def test_hosts_of_one_domain_are_a_node_and_its_cells() -> None:
    hosts, domains = ["a", "a", "b", "b", "c", "d", "d"], ["r"] * 4 + ["", "s", "s"]
    rack = split_into_nodes(hosts, 0, MOST, domains)
    assert rack.node_of == (0, 0, 0, 0, 1, 2, 2) and rack.host_of == (0, 0, 1, 1, 2, 3, 3)
    assert rack.cell_of == (0, 0, 1, 1, 2, 3, 3) and (rack.num_nodes, rack.num_cells) == (3, 4)
    assert [rack.abroad(rank) for rank in (0, 3, 4, 5)] == [[2, 3], [0, 1], [], []]
    assert [rack.read_at(4, reader) for reader in (0, 1, 2, 3)] == [0, 0, 2, 2]  # once for each host
    assert rack.unreached(0) == [1, 2, 3]
    assert split_into_nodes(hosts, 2, MOST, domains).host_of == ()  # no node spans hosts
    left = rack.without({0, 4})
    assert left.node_of == (NO_NODE, 0, 0, 0, NO_NODE, 1, 1) and left.cell_of == (NO_NODE, 0, 1, 1, NO_NODE, 2, 2)
    assert rack.without({4, 5, 6}).num_cells == 1 and replace(rack, apart=True).num_cells == 7


def test_a_domain_that_is_all_is_one_node() -> None:
    rack = split_into_nodes(["a", "a", "b", "b"], 0, MOST, ["r"] * 4)
    assert rack.cell_of == rack.node_of == (0,) * 4 and rack.num_landing_slots == 0 and rack.abroad(1) == [2, 3]
    assert split_into_nodes(["a", "a"], 0, MOST, ["r", "r"]).host_of == ()  # one host: nothing is special
    assert split_into_nodes(["a", "b"], 0, MOST, ["", ""]).node_of == (0, 1)
    assert split_into_nodes(["a", "a"], 0, MOST, ["", "r"]).node_of == (0, 1)  # GPUs of one host, in and out of it


def test_one_node_hosts_nobody() -> None:
    alone = split_into_nodes(["h"], 0, MOST)
    assert (alone.num_nodes, alone.num_landing_slots) == (1, 0)
    assert split_into_nodes(["h"] * 8, 0, MOST).num_landing_slots == 0


def test_uneven_nodes_host_several_sources_of_a_larger_one() -> None:
    topology = split_into_nodes(["big"] * 5 + ["small"] * 2, 0, MOST)
    assert topology.sizes == [5, 2]
    assert topology.num_landing_slots == 2 * 3  # a rank of the small node stands for up to three of the big one


def test_a_proxy_never_reaches_its_own_node_nor_the_absent() -> None:
    topology = split_into_nodes(["a", "a", "b", "b", "b"], 0, MOST).without(frozenset({1, 3}))
    assert topology.unreached(2) == [1, 3, 4]
    assert topology.unreached(0) == [1, 3]


@pytest.mark.parametrize("value", [-1, MOST + 1])
def test_ranks_per_node_out_of_range(value: int) -> None:
    with pytest.raises(InvalidArgument, match=f"UCCL_EP_RANKS_PER_NODE must be 0 to {MOST}; got {value}."):
        split_into_nodes(["h"], value, MOST)


@given(hosts=st.lists(st.sampled_from("abcde"), min_size=1, max_size=300), per_node=st.integers(0, MOST))
def test_every_split_is_a_partition_by_host(hosts: list[str], per_node: int) -> None:
    topology = split_into_nodes(hosts, per_node, MOST)
    assert len(topology.node_of) == len(hosts)
    first_ranks = [topology.members(n)[0] for n in range(topology.num_nodes)]
    assert first_ranks == sorted(first_ranks)
    for node in range(topology.num_nodes):
        members = topology.members(node)
        assert 1 <= len(members) <= (per_node or MOST)
        assert len({hosts[r] for r in members}) == 1
    for host in set(hosts):
        ranks = hosts.count(host)
        nodes = {topology.node_of[r] for r, h in enumerate(hosts) if h == host}
        assert len(nodes) == -(-ranks // (per_node or MOST))  # no more nodes than needed


def test_members_and_sizes_of_a_given_topology() -> None:
    topology = Topology((0, 1, 1, 0, 2))
    assert topology.members(1) == [1, 2]
    assert topology.sizes == [2, 2, 1]
    assert topology.num_landing_slots == 6


def test_rows_are_read_at_the_rank_on_the_same_rail() -> None:
    topology = Topology((0, 1, 1, 0, 2, 1))
    assert [topology.read_at(source, 0) for source in range(6)] == [0, 0, 3, 3, 0, 0]
    assert [topology.read_at(source, 1) for source in range(6)] == [1, 1, 2, 2, 1, 5]
    assert [topology.read_at(source, 4) for source in range(6)] == [4] * 6
    assert topology.landing_ranks.of_source(3) == [3, 2, 4]


def test_rows_are_read_at_their_reader_where_each_rank_is_a_cell() -> None:
    topology = Topology((0, 1, 1, 0), apart=True)
    assert [[topology.read_at(source, reader) for reader in range(4)] for source in range(4)] == [
        [0, 1, 2, 0], [0, 1, 1, 3], [0, 2, 2, 3], [3, 1, 2, 3],
    ]  # fmt: skip


def test_an_absent_rank_has_no_rows_and_reads_none() -> None:
    topology = Topology((0, 0, 1, 1, 1)).without({0, 2})
    assert topology.landing_ranks.in_cell(1) == [NO_NODE, 3, NO_NODE, 3, 4]
    assert topology.landing_ranks.in_cell(0) == [NO_NODE, 1, NO_NODE, 1, 1]
    with pytest.raises(ValueError, match="the source is absent"):
        topology.landing_ranks.of_source(0)
    with pytest.raises(IndexError):
        topology.landing_ranks.of_source(5)
    with pytest.raises(IndexError, match="no such cell"):
        topology.landing_ranks.in_cell(2)


def test_places_of_absent_ranks_are_kept_where_each_rank_is_apart() -> None:
    """What kernels and memory are laid out by is the same whoever is absent; who takes part is not."""
    whole = replace(split_into_nodes(["h"] * 6, 2, MOST), apart=True)
    for absent in ({1}, {2, 3}, {0, 5}):
        left = whole.vacated(absent)
        assert left.placed == whole.node_of and left.cell_of == whole.cell_of and left.sizes == whole.sizes
        assert (left.num_nodes, left.num_cells, left.num_landing_slots) == (3, 6, whole.num_landing_slots)
        assert left.shape.num_units == whole.shape.num_units
        assert left.members(NO_NODE) == sorted(absent) and sum(map(len, map(left.members, range(3)))) == 6 - len(absent)
        assert left.mates(4) == [4, 5] and left.read_at(4, 4) == 4
        assert set(absent) <= set(left.unreached(4))
        dense = left.without(())
        assert dense.places == () and dense.num_nodes == len(set(left.node_of) - {NO_NODE})
    with pytest.raises(InvalidArgument, match="absent"):
        whole.vacated(range(6))
