"""The closed form against sampled routes, against counting by hand, and at its limits."""

from __future__ import annotations

from math import comb
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uccl_ep.cost_model.expected_bytes import (
    Load,
    chance_of_visit,
    combine_row_bytes,
    dispatch_row_bytes,
    expect,
    expected_places,
    places,
)
from uccl_ep.errors import InvalidArgument
from uccl_ep.group.topology import Topology

LOAD = Load(tokens=128, hidden=7168, experts=256, topk=8, row_format="fp8")


def nodes(*sizes: int, apart: bool = False) -> Topology:
    return Topology(tuple(node for node, size in enumerate(sizes) for _ in range(size)), apart)


@given(st.integers(1, 400), st.data())
@settings(max_examples=60, deadline=None)
def test_traffic_chance_is_the_hypergeometric_one(experts: int, data: Any) -> None:
    topk = data.draw(st.integers(1, min(32, experts)))
    there = data.draw(st.integers(0, experts))
    exact = 1 - comb(experts - there, topk) / comb(experts, topk)
    assert chance_of_visit(experts, topk, there) == pytest.approx(exact, abs=1e-12)


def test_traffic_chance_at_its_limits() -> None:
    assert chance_of_visit(4096, 32, 0) == 0.0 and chance_of_visit(4096, 32, 4096) == 1.0
    assert chance_of_visit(8, 8, 1) == 1.0 and chance_of_visit(8, 1, 2) == pytest.approx(0.25)


@pytest.mark.parametrize(
    "topology", [nodes(8, 8), nodes(4, 4, 4, 4), nodes(1, 1, 1), nodes(5, 3), nodes(4, 4, apart=True), nodes(6)]
)
def test_traffic_expected_places_are_what_random_routes_visit(topology: Topology) -> None:
    n = topology.num_ranks
    load = Load(tokens=1, hidden=128, experts=12 * n, topk=6)
    rng = np.random.default_rng(7)
    routes = rng.random((4000, load.experts)).argpartition(6, axis=1)[:, :6] // 12  # ranks of 6 distinct experts
    cell_of, node_of = np.array(topology.cell_of), np.array(topology.node_of)
    for node in range(topology.num_nodes):
        away = [[cell_of[r] for r in row if node_of[r] != node] for row in routes]
        seen = np.array([len(set(row)) for row in away])
        error = 5 * seen.std() / np.sqrt(len(seen)) + 1e-9
        assert abs(seen.mean() - expected_places(load, topology, node)) <= error


def test_traffic_places() -> None:
    assert places(nodes(2, 3)) == [(0, 2), (1, 3)]
    assert places(nodes(2, 1, apart=True)) == [(0, 1), (0, 1), (1, 1)]


def test_traffic_by_hand() -> None:
    """2 nodes of 8: a token stays with chance C(128, 8) / C(256, 8)."""
    leaves = 1 - comb(128, 8) / comb(256, 8)
    row = 7168 + 7168 // 128 * 4
    assert dispatch_row_bytes(LOAD) == row == 7392
    made = expect(LOAD, nodes(8, 8), 400.0)
    routing = 16 + 2 * 128 * 8
    assert made.remote_places == pytest.approx(leaves)
    assert made.dispatch_bytes == pytest.approx(128 * leaves * row + routing + 48)
    assert made.combine_bytes == pytest.approx(128 * 8 * 0.5 * 2 * 7168 + 8 * 48)
    assert made.per_expert_bytes == pytest.approx(128 * 8 * 0.5 * row)
    assert made.received_rows == 1024
    assert made.seconds == pytest.approx((made.dispatch_bytes + made.combine_bytes) / 50e9)
    assert "128 tokens x 0.99" in made.formula and expect(LOAD, nodes(8, 8), 0.0).seconds == 0.0


def test_traffic_of_throughput_mode_merges_before_it_crosses() -> None:
    load = Load(4096, 7168, 256, 8, "throughput", "fp8")
    made = expect(load, nodes(8, 8), 0.0)
    assert dispatch_row_bytes(load) == 16 + 7168 + 224 + 4 * 8 + 2 * 8 + 0
    assert combine_row_bytes(load) == 16 + 2 * 7168
    rows = 4096 * made.remote_places
    assert made.dispatch_bytes == pytest.approx(rows * dispatch_row_bytes(load))
    identities = 8 * 16  # which call it is, to every rank of the other node
    assert made.combine_bytes == pytest.approx(rows * combine_row_bytes(load) + identities)


@pytest.mark.parametrize("mode", ["low_latency", "throughput"])
def test_traffic_of_one_node_is_none(mode: str) -> None:
    load = Load(7, 256, 8, 3, mode)
    made = expect(load, nodes(8), 400.0)
    assert (made.dispatch_bytes, made.combine_bytes, made.remote_places, made.per_expert_bytes) == (0, 0, 0, 0)


def test_traffic_of_shrink_is_more() -> None:
    plain, apart = expect(LOAD, nodes(8, 8), 0.0), expect(LOAD, nodes(8, 8, apart=True), 0.0)
    assert apart.remote_places > 3 * plain.remote_places and apart.dispatch_bytes > 3 * plain.dispatch_bytes
    assert apart.combine_bytes == plain.combine_bytes


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"tokens": 0}, "--tokens"),
        ({"tokens": 65537}, "--tokens"),
        ({"hidden": 7169}, "--hidden"),
        ({"experts": 255}, "a multiple of the 16 ranks"),
        ({"topk": 33}, "--topk"),
        ({"mode": "fast"}, "low_latency or throughput"),
        ({"row_format": "fp4"}, "--format"),
        ({"mode": "throughput", "row_format": "nvfp4"}, "in throughput mode"),
    ],
)
def test_traffic_refuses_what_a_buffer_would(changes: dict[str, Any], says: str) -> None:
    LOAD.check(16)
    with pytest.raises(InvalidArgument, match=says):
        Load(**{**LOAD.__dict__, **changes}).check(16)
