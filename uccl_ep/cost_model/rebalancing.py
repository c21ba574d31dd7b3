"""What it costs to place experts anew (EPLB's rebalancing), and what it saves: bytes by link, rows by rank, steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import ceil

import numpy as np

from uccl_ep.cost_model.choice import Network
from uccl_ep.cost_model.cluster import Cluster, Ints
from uccl_ep.cost_model.demand import Demand
from uccl_ep.cost_model.placement import to_slots
from uccl_ep.cost_model.routing import Routing
from uccl_ep.cost_model.traffic import Traffic, busiest
from uccl_ep.errors import refuse

Calls = Callable[[Demand], tuple[Traffic, ...]]
"""The calls of a step, one after the other: a dispatch and its combine, by ours.py."""


@dataclass(frozen=True, eq=False)
class Moves:
    """Bytes of experts that go from rank to rank, once.

    Attributes:
        inside: int64 [N, N], between ranks of a node. between: int64 [N, N], between nodes.
        copies: experts that ranks get which they had not.
    """

    inside: Ints
    between: Ints
    copies: int


@dataclass(frozen=True, eq=False)
class StepCost:
    """One step (a dispatch and its combine) with one placement.

    Attributes:
        traffic: of each call.
        rows: int64 [N], (token, expert) pairs that each rank computes.
    """

    traffic: tuple[Traffic, ...]
    rows: Ints

    @cached_property
    def wire_bytes(self) -> int:
        """Between nodes, of all ranks together."""
        return sum(int(one.num_bytes.sum()) for one in self.traffic)

    @cached_property
    def busiest_bytes(self) -> int:
        """What the busiest rank sends or receives between nodes in each call, added up: a NIC a rank waits for it."""
        return sum(busiest(one.num_bytes) for one in self.traffic)

    @property
    def busiest_rows(self) -> int:
        """Of the rank that computes most."""
        return int(self.rows.max())

    def microseconds(self, network: Network, row_us: float) -> float:
        """busiest_bytes / gb_per_s + busiest_rows x row_us. Latency and messages, which hardly change, are left out."""
        return self.busiest_bytes / (network.gb_per_s * 1e3) + self.busiest_rows * row_us


@dataclass(frozen=True, eq=False)
class Rebalancing:
    """The result of rebalance(); see there for the formulas.

    Attributes:
        move_us: microseconds that moving takes. saved_us: of each step afterwards; below 0: it takes longer.
    """

    moves: Moves
    before: StepCost
    after: StepCost
    move_us: float
    saved_us: float

    @property
    def pays_after(self) -> int | None:
        """Steps, ceil(move_us / saved_us); None: never."""
        return ceil(self.move_us / self.saved_us) if self.saved_us > 0 else None


def moves(before: Ints, after: Ints, cluster: Cluster, expert_bytes: int) -> Moves:
    """What must move so that every rank has the experts that `after` gives it.

    A rank keeps what it has. What it lacks comes from a rank of its node that had it before, else from another node: a
    row crosses once to a cell (a node, or a rank with `cluster.apart`), to the rank where rows of its source land, and
    the cell's other ranks read it there, as EPBuffer.lb_prefetch_weights does it. Of several sources that one sends
    which has sent least. Headers of rows are not counted.

    Args:
        before, after: placements, int64 [P] (placement.py); they may have different numbers of slots.
        expert_bytes: of one expert, with all that moves along.
    """
    ranks = cluster.num_ranks
    had, wants = (_ranks_of(one, ranks) for one in (before, after))
    inside, between = (np.zeros((ranks, ranks), dtype=np.int64) for _ in range(2))
    copies = 0
    for expert, wanting in sorted(wants.items()):
        holders = had.get(expert, set())
        lacking = sorted(wanting - holders)
        copies += len(lacking)
        landed: dict[int, int] = {}  # where it is by cell, for those that have it from another node
        for rank in lacking:
            near = [holder for holder in sorted(holders) if cluster.node_of[holder] == cluster.node_of[rank]]
            cell = int(cluster.cell_of[rank])
            if near:
                source = min(near, key=lambda r: (int(inside[r].sum()), r))
            elif cell not in landed:
                far = min(sorted(holders), key=lambda r: (int(between[r].sum()), r))
                source = landed[cell] = int(cluster.host[far, cell])
                between[far, source] += expert_bytes
            else:
                source = landed[cell]
            if source != rank:
                inside[source, rank] += expert_bytes
    return Moves(inside, between, copies)


def _ranks_of(placement: Ints, ranks: int) -> dict[int, set[int]]:
    """By expert: the ranks that have it."""
    found: dict[int, set[int]] = {}
    for slot, expert in enumerate(placement.tolist()):
        if expert >= 0:
            found.setdefault(expert, set()).add(slot // (len(placement) // ranks))
    return found


def step_cost(routing: Routing, placement: Ints, cluster: Cluster, experts: int, calls: Calls) -> StepCost:
    """A step of `routing` (ids [T, K] by rank of `experts` experts) with a placement of them."""
    demand = Demand(to_slots(routing, placement, experts), cluster, len(placement))
    return StepCost(calls(demand), demand.selections.sum(axis=0))


@dataclass(frozen=True)
class Expert:
    """Bytes of one expert in one layer.

    Attributes:
        weight_bytes: what a rank needs to compute with it.
        state_bytes: what moves along besides: gradients and the optimizer's state of a trainer; 0 for a server.
    """

    weight_bytes: int
    state_bytes: int = 0

    @staticmethod
    def gated(hidden: int, intermediate: int, weight: float, state: float = 0.0) -> Expert:
        """A gated MLP, of 3 x hidden x intermediate parameters with so many bytes each (fp8 1, bf16 2; Adam in fp32
        with gradients and master weights 16)."""
        if min(hidden, intermediate) < 1 or weight <= 0 or state < 0:
            given = (hidden, intermediate, weight, state)
            refuse("hidden, intermediate, weight, state", given, "sizes above 0, and a state of 0 or more")
        parameters = 3 * hidden * intermediate
        return Expert(ceil(parameters * weight), ceil(parameters * state))

    @property
    def num_bytes(self) -> int:
        """Both."""
        return self.weight_bytes + self.state_bytes


@dataclass(frozen=True, eq=False)
class Placements:
    """Experts of one layer before and after: int64 [P] each (placement.py), of so many experts over `cluster`."""

    before: Ints
    after: Ints
    experts: int
    cluster: Cluster


def rebalance(
    routing: Routing, placed: Placements, calls: Calls, expert: Expert, network: Network, row_us: float = 0.0
) -> Rebalancing:
    """What going from one placement of a layer's experts to another costs, and saves in each step after it.

    With B the bytes of `moves`, in 10^9 bytes a second g of a rank's NIC and n of its node's memory, in microseconds:

    - moving takes max(busiest rank's B between nodes / (1000 g), busiest rank's B inside a node / (1000 n)): both links
      work at the same time, and nothing else does;
    - a step takes (busiest rank's bytes between nodes of dispatch + those of combine) / (1000 g) + (rows of the rank
      that computes most) x row_us;
    - it pays after ceil(moving / (step before - step after)) steps with this routing, or never.

    Layers add up on both sides, so one stands for all that are as skewed.

    Args:
        routing: by rank, ids [T, K] of logical experts: a step as it is, or is expected to be.
        calls: of a step.
        row_us: what a rank takes to compute one (token, expert) row, in microseconds; 0: only bytes count.

    Raises:
        InvalidArgument: placements that ranks cannot share, or an expert's size that cannot be.
    """
    cluster = placed.cluster
    moved = moves(placed.before, placed.after, cluster, expert.num_bytes)
    before, after = (step_cost(routing, one, cluster, placed.experts, calls) for one in (placed.before, placed.after))
    links = (moved.between, network.gb_per_s), (moved.inside, network.node_gb_per_s)
    move_us = max(busiest(matrix) / (rate * 1e3) for matrix, rate in links)
    saved_us = before.microseconds(network, row_us) - after.microseconds(network, row_us)
    return Rebalancing(moved, before, after, move_us, saved_us)
