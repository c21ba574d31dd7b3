"""The job behind a published figure: its routing, its plan, and the time that the figure stands for."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from uccl_ep.cost_model.cluster import Cluster
from uccl_ep.cost_model.demand import Demand
from uccl_ep.cost_model.routing import Routing, make_routing
from uccl_ep.sizes import round_up
from uccl_ep.tools.bench.scale.plans import Plan, Shape, low_latency, throughput, wanted_rows
from uccl_ep.tools.bench.scale.platforms import Platform
from uccl_ep.tools.bench.scale.published import BOTH, Row

# Upstream's test programs: (tokens of a rank, experts at least); top-8, 7,168 channels.
_JOBS = {"low-latency": (128, 288), "throughput": (4096, 256)}
_TOPK, _HIDDEN, _MOST_NODES = 8, 7168, 4


def plans_of(row: Row, platform: Platform) -> list[Plan]:
    """Upstream's traffic for a row; two plans where the figure is of both phases."""
    phases = ("dispatch", "combine") if row.phase == BOTH else (row.phase,)
    per_node = platform.ranks_per_node
    return [_plan(row.mode, row.ranks, per_node, p, row.row_format, row.batched, platform.efa) for p in phases]


def published_us(row: Row, platform: Platform) -> float:
    """The figure as a time. Rates count rows as upstream's programs do: in throughput mode a token once for each node
    that it visits, its own too (on one node: once for each rank); in low latency once for each expert."""
    if row.us:
        return row.us
    fp8 = row.phase == "dispatch" and row.row_format == "fp8"
    each = _HIDDEN + _HIDDEN // 128 * 4 if fp8 else 2 * _HIDDEN
    return counted_rows(row.mode, row.ranks, platform.ranks_per_node) * each / row.gb_per_s / 1e3


@lru_cache(maxsize=32)
def counted_rows(mode: str, ranks: int, per_node: int) -> float:
    """Rows of a rank that a published rate counts, on average."""
    demand = demand_of(mode, ranks, per_node)
    if mode == "low-latency":
        rows = int(demand.selections.sum())
    elif demand.cluster.num_nodes == 1:
        rows = int(wanted_rows(demand).sum())
    else:
        rows = int(demand.rows.sum())
        for source, ids in enumerate(demand.routing):
            nodes = demand.cluster.node_of[ids // demand.local_experts]
            rows += int((nodes == demand.cluster.node_of[source]).any(axis=1).sum())
    return rows / ranks


@lru_cache(maxsize=32)
def demand_of(mode: str, ranks: int, per_node: int) -> Demand:
    """Random experts; in throughput mode upstream's program keeps a token to four nodes at most."""
    tokens, least = _JOBS[mode]
    experts, nodes = round_up(least, ranks), -(-ranks // per_node)
    routing: Routing
    if mode == "throughput" and nodes > _MOST_NODES:
        each = experts // nodes
        chosen = make_routing("random", ranks, tokens, _MOST_NODES, nodes, 1)
        drawn = make_routing("random", ranks, tokens, _TOPK, _MOST_NODES * each, 2)
        routing = [
            np.take_along_axis(nodes_of, ids // each, axis=1) * each + ids % each
            for nodes_of, ids in zip(chosen, drawn, strict=True)
        ]
    else:
        routing = make_routing("random", ranks, tokens, _TOPK, experts)
    return Demand(routing, Cluster.even(ranks, per_node), experts)


def plan_of_job(side: str, mode: str, ranks: int, platform: Platform, phase: str, row_format: str) -> Plan:
    """The plan of a side ("upstream", "ours", "ours, by node") for the job behind a published figure."""
    make = low_latency if mode == "low-latency" else throughput
    demand = demand_of(mode, ranks, platform.ranks_per_node)
    return make(side, phase, demand, Shape(_HIDDEN, _TOPK, row_format), platform.efa)


@lru_cache(maxsize=256)
def _plan(mode: str, ranks: int, per_node: int, phase: str, row_format: str, batched: bool, efa: bool) -> Plan:
    make = low_latency if mode == "low-latency" else throughput
    shape = Shape(_HIDDEN, _TOPK, row_format, batched)
    return make("upstream", phase, demand_of(mode, ranks, per_node), shape, efa)
