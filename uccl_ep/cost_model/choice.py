"""Direct or reduced in the node? A cost model with its reasons, instead of a constant.

time = latency of each step + busiest rank's bytes / bandwidth + its messages x cost of one + bytes that it loads from
node peers / their bandwidth. Every term is printed, so that whoever knows the network better can argue with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from uccl_ep._native import EXPECT_BYTES, LowLatencyLayout
from uccl_ep.cost_model import ours, wire
from uccl_ep.cost_model.demand import Demand
from uccl_ep.cost_model.expected_bytes import chance_of_visit
from uccl_ep.cost_model.traffic import Traffic, busiest
from uccl_ep.errors import refuse

FORMS = ("direct", "node")
"""Of a dispatch: to every rank that wants the row, or once per node. Of a combine: ours.COMBINE_FORMS."""


@dataclass(frozen=True)
class Network:
    """What one rank's share of a network does.

    Attributes:
        latency_us: of one write, from command to flag. gb_per_s: 10^9 bytes a second, each way.
        message_us: what one write costs beside its bytes.
        node_latency_us, node_gb_per_s: the same of loads from a rank of the node, with the flag that precedes them.
    """

    name: str
    latency_us: float
    gb_per_s: float
    message_us: float
    node_latency_us: float = 3.0
    node_gb_per_s: float = 300.0


NETWORKS = {
    # 7 Mmsg/s fill 400 Gb/s with rows of 7 KB; half of a round trip of 10 us (facts on upstream, 2 and 3).
    "cx7": Network("cx7", 5.0, 50.0, 0.125),
    # 8 KB writes reach 13.8 GB/s, 4 MB writes 43.7: 0.41 us a write; half of 15 to 25 us (the same, 3 and 7).
    "efa": Network("efa", 10.0, 43.7, 0.41),
    # A host without an RDMA NIC: 25 Gb/s, a system call at each end; ranks share a memory bus.
    "tcp": Network("tcp", 30.0, 3.0, 3.0, 3.0, 10.0),
}


@dataclass(frozen=True)
class Estimate:
    """Microseconds of one form, by cause."""

    form: str
    latency_us: float
    bytes_us: float
    messages_us: float
    node_us: float

    @property
    def total_us(self) -> float:
        """All of it, one after the other."""
        return self.latency_us + self.bytes_us + self.messages_us + self.node_us


@dataclass(frozen=True)
class Choice:
    """The form that takes less time, and what the others would take.

    Attributes:
        reasons: one line a form, then which term decides.
    """

    form: str
    estimates: tuple[Estimate, ...]
    reasons: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        estimates = [{**asdict(e), "total_us": e.total_us} for e in self.estimates]
        return {"form": self.form, "estimates": estimates, "reasons": list(self.reasons)}


def choose(phase: str, demand: Demand, call: ours.LowLatencyCall, network: Network) -> Choice:
    """Compares both forms of a low-latency phase for what a network charges.

    Args:
        phase: "dispatch" or "combine".

    Raises:
        InvalidArgument: another phase.
    """
    if phase not in ("dispatch", "combine"):
        refuse("phase", phase, "dispatch or combine")
    demand = demand.with_cells(apart=False)
    loads = node_loads(phase, demand, call)
    if phase == "dispatch":
        estimates = (
            _estimate("direct", ours.low_latency_dispatch(demand.with_cells(apart=True), call), network, 1, 0),
            _estimate("node", ours.low_latency_dispatch(demand, call), network, 1, loads),
        )
    else:
        # The weights have to be there before rows can be summed: a step more, which only a slow expert hides.
        estimates = (
            _estimate("direct", ours.low_latency_combine(demand, call, "direct"), network, 1, 0),
            _estimate("node", ours.low_latency_combine(demand, call, "node"), network, 2, loads),
        )
    return decide(estimates)


def uniform_combine(
    sizes: tuple[int, int, int, int], node_sizes: Sequence[int], network: Network
) -> tuple[Estimate, Estimate]:
    """Both forms of a low-latency combine before anything is routed: expected rows of the busiest rank, for routing
    that is uniform over experts.

    Args:
        sizes: tokens of a rank, channels, experts of all ranks, experts of a token.
        node_sizes: ranks of each node.
    """
    tokens, hidden, experts, topk = sizes
    ranks, row = sum(node_sizes), 2 * hidden
    own = experts // ranks
    visit = [tokens * chance_of_visit(experts, topk, own * size) for size in node_sizes]  # rows of a source there
    direct_rows = max(tokens * topk * (ranks - size) / ranks for size in node_sizes)
    told = LowLatencyLayout.weights_bytes(tokens, topk)
    node_bytes = node_writes = loads = 0.0
    for n, size in enumerate(node_sizes):
        others = [m for m in range(len(node_sizes)) if m != n]
        sources = sum(-(-node_sizes[m] // size) for m in others)  # that a host there stands for
        hosts = len(others)  # that this rank has elsewhere
        calls = (ranks - size) * EXPECT_BYTES  # which call it is, to and from every rank of other nodes
        sends = sources * (visit[n] * row + EXPECT_BYTES) + hosts * told + calls
        takes = sum(visit[m] for m in others) * row + hosts * EXPECT_BYTES + sources * told + calls
        node_bytes = max(node_bytes, sends, takes)
        node_writes = max(node_writes, sources * (visit[n] + 1) + hosts + ranks - size)
        loads = max(loads, sources * tokens * topk * own * (size - 1) / experts * row)
    remote = ranks - min(node_sizes)
    direct = Estimate(
        "direct",
        latency_us=network.latency_us,
        bytes_us=(direct_rows * row + remote * EXPECT_BYTES) / network.gb_per_s / 1e3,
        messages_us=(direct_rows + remote) * network.message_us,
        node_us=0.0,
    )
    node = Estimate(
        "node",
        latency_us=2 * network.latency_us,
        bytes_us=node_bytes / network.gb_per_s / 1e3,
        messages_us=node_writes * network.message_us,
        node_us=network.node_latency_us + loads / network.node_gb_per_s / 1e3,
    )
    return direct, node


def decide(estimates: tuple[Estimate, ...]) -> Choice:
    """The least total; on a tie the first."""
    best = min(estimates, key=lambda e: e.total_us)
    lines = [
        f"{e.form}: {e.total_us:.1f} us = latency {e.latency_us:.1f} + bytes {e.bytes_us:.1f} + "
        f"messages {e.messages_us:.1f} + loads in the node {e.node_us:.1f}"
        for e in estimates
    ]
    second = min((e for e in estimates if e is not best), key=lambda e: e.total_us, default=best)
    terms = {"latency": "latency_us", "bytes": "bytes_us", "messages": "messages_us", "loads in the node": "node_us"}
    gains = {name: getattr(second, field) - getattr(best, field) for name, field in terms.items()}
    name = max(gains, key=lambda n: gains[n])
    lines.append(
        f"{best.form}, since its {name} take {gains[name]:.1f} us less"
        if gains[name] > 0
        else f"{best.form}: both forms cost the same here"
    )
    return Choice(best.form, estimates, tuple(lines))


def node_loads(phase: str, demand: Demand, call: ours.LowLatencyCall) -> int:
    """Bytes that the busiest rank loads from others of its node when rows of other nodes pass through a host: of a
    dispatch what experts take from the host, of a combine what the host takes from experts."""
    cluster = demand.cluster
    host = cluster.host[:, cluster.cell_of]
    elsewhere = demand.crossing * (host != np.arange(cluster.num_ranks)[None, :])
    if phase == "dispatch":
        return int(elsewhere.sum(axis=0).max()) * wire.row_bytes(call.hidden, call.row_format)
    by_host = np.bincount(host.ravel(), weights=elsewhere.ravel(), minlength=cluster.num_ranks)
    return int(by_host.max()) * 2 * call.hidden


def _estimate(form: str, traffic: Traffic, network: Network, steps: int, node_bytes: int) -> Estimate:
    used = bool(traffic.writes.any())
    return Estimate(
        form,
        latency_us=steps * network.latency_us if used else 0.0,
        bytes_us=busiest(traffic.num_bytes) / network.gb_per_s / 1e3,
        messages_us=busiest(traffic.writes) * network.message_us,
        node_us=network.node_latency_us + node_bytes / network.node_gb_per_s / 1e3 if node_bytes else 0.0,
    )
