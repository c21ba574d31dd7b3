"""What a call does at both ends of the network: which bytes pass the links of a node before or after the messages.

A plan is made of counts only (`uccl_ep/cost_model`), so both sides differ in what they do, not in how they are timed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from uccl_ep._native import RowShape
from uccl_ep.cost_model import ours, wire
from uccl_ep.cost_model.cluster import Ints
from uccl_ep.cost_model.demand import Demand, visited_cells
from uccl_ep.cost_model.traffic import Traffic
from uccl_ep.tools.bench.model import upstream
from uccl_ep.tools.bench.scale.queues import Times

PHASES = ("dispatch", "combine")


@dataclass(frozen=True, eq=False)
class Plan:
    """One phase of one side. Matrices are [N, N] of bytes, and N is the number of ranks.

    Attributes:
        name: for tables.
        traffic: what crosses between nodes, in issue order but for `last`.
        memory_bytes: [N] of device memory that the kernel moves in all.
        local: a rank's rows from ranks of its own node, over the links of the node.
        first: traffic that must be there before a target may merge for that source.
        merge: from a message's source to its target: what the source takes from its node before it can send.
        forward: from source to host: what the host hands on to its node, message by message.
        forwarder: handing on needs the host's kernel; else readers fetch by themselves.
        fetch: from source to reader: what a reader takes from its host when all of that source is there.
        streams: throughput mode: rates of its kernels and of a pair of ranks; positions of a stream are applied in
            order.
        last: flows that follow all others.
    """

    name: str
    demand: Demand
    traffic: Traffic
    memory_bytes: Times
    local: Ints
    first: Traffic | None = None
    merge: Ints | None = None
    forward: Ints | None = None
    forwarder: bool = True
    fetch: Ints | None = None
    streams: bool = False
    last: tuple[str, ...] = field(default=("expect headers", "counts", "routing blocks"))


@dataclass(frozen=True)
class Shape:
    """Sizes of a call, for both sides.

    Attributes:
        row_format: of dispatch: "bf16" or "fp8". batched: upstream built with per-expert batching.
    """

    hidden: int = 7168
    topk: int = 8
    row_format: str = "fp8"
    batched: bool = False


def wanted_rows(demand: Demand) -> Ints:
    """int64 [N, N]: tokens of a source that want an expert of a rank, its own node's too; each counts once."""
    apart = demand.cluster.with_cells(True)
    ranks = apart.num_ranks
    if apart.num_nodes == 1:  # cells of one node cannot be told apart there
        apart.cell_of, apart.num_cells = np.arange(ranks), ranks
    return np.stack([visited_cells(ids, apart, demand.num_experts).sum(axis=0) for ids in demand.routing])


def low_latency(side: str, phase: str, demand: Demand, shape: Shape, efa: bool) -> Plan:
    """Of `side` "upstream", "ours" or "ours, by node" (combine reduced in the node)."""
    own = demand.selections - demand.crossing
    if side == "upstream":
        how = upstream.Upstream(efa=efa, batched=shape.batched)
        each = 2 * shape.hidden
        traffic = upstream.low_latency_combine(demand, shape.hidden, how)
        if phase == "dispatch":
            each = upstream.message_bytes(shape.hidden, shape.row_format)
            traffic = upstream.low_latency_dispatch(demand, shape.hidden, shape.row_format, how)
        local = own * each if phase == "dispatch" else own.T * each
        return Plan(side, demand, traffic, _memory(demand.selections * each), local)
    call = ours.LowLatencyCall(shape.hidden, shape.row_format)
    if phase == "dispatch":
        each = wire.row_bytes(shape.hidden, shape.row_format)
        fetch = demand.crossing * each
        traffic = ours.low_latency_dispatch(demand, call)
        return Plan(side, demand, traffic, _memory(demand.selections * each), own * each, fetch=fetch)
    each = call.combine_bytes
    memory, local = _memory(demand.selections * each), own.T * each
    if side == "ours":
        return Plan(side, demand, ours.low_latency_combine(demand, call, "direct"), memory, local)
    traffic = ours.low_latency_combine(demand, call, "node")
    merge = _by_host(demand, demand.crossing * each).T
    return Plan(
        side, demand, traffic.of("rows", "expect headers"), memory, local, first=traffic.of("weights"), merge=merge
    )


def throughput(side: str, phase: str, demand: Demand, shape: Shape, efa: bool) -> Plan:
    """Of `side` "upstream" or "ours". Counts are known beforehand, as in a cached dispatch: published kernel times lack
    their exchange too."""
    hidden, topk = shape.hidden, shape.topk
    scales = hidden // 128 if shape.row_format == "fp8" else 0
    payload = hidden if shape.row_format == "fp8" else 2 * hidden
    wanted = wanted_rows(demand)
    own = wanted * ~demand.cluster.is_remote
    each = payload + 4 * scales if phase == "dispatch" else 2 * hidden
    passed = _by_host(demand, (wanted - own) * each)
    if side == "upstream":
        how = upstream.Upstream(efa=efa)
        if phase == "dispatch":
            traffic = upstream.throughput_dispatch(demand, upstream.Rows(payload, scales, topk, topk), how)
        else:
            traffic = upstream.throughput_combine(demand, upstream.Rows(2 * hidden, weights=topk), how)
    else:
        row = RowShape(payload, 4 * scales, topk, has_ids=True, has_weights=True)
        call = ours.ThroughputCall(hidden, row, weights=True)
        traffic = (
            ours.throughput_dispatch(demand, call, counted=False)
            if phase == "dispatch"
            else ours.throughput_combine(demand, call)
        )
    traffic = traffic.of("chunks", "credits", "tails")
    memory = _memory(wanted * each)
    if phase == "combine":
        return Plan(side, demand, traffic, memory, own.T * each, merge=passed.T, streams=True)
    return Plan(side, demand, traffic, memory, own * each, forward=passed, forwarder=side == "upstream", streams=True)


def _memory(moved: Ints) -> Times:
    """Each row is read and written once at either end."""
    both: Times = 2.0 * moved.sum(axis=1) + 2.0 * moved.sum(axis=0)
    return both


def _by_host(demand: Demand, amounts: Ints) -> Ints:
    """[N, N] of source and rank, as [N, N] of source and that rank's host for it; other nodes only."""
    cluster = demand.cluster
    per_node = np.zeros((cluster.num_ranks, cluster.num_nodes), np.int64)
    for node in range(cluster.num_nodes):
        per_node[:, node] = (amounts * cluster.is_remote)[:, cluster.node_of == node].sum(axis=1)
    return cluster.to_hosts(per_node)
