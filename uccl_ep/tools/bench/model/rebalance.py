"""`uccl-ep bench rebalance`: the cost model's rebalance() for a routing that is made, and placements that are given."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from uccl_ep.cost_model import ours, placement
from uccl_ep.cost_model.choice import NETWORKS, Network
from uccl_ep.cost_model.cluster import Cluster, Ints
from uccl_ep.cost_model.demand import Demand
from uccl_ep.cost_model.rebalancing import Expert, Placements, StepCost
from uccl_ep.cost_model.rebalancing import rebalance as count
from uccl_ep.cost_model.routing import make_routing
from uccl_ep.cost_model.traffic import Traffic, busiest
from uccl_ep.errors import Described, refuse
from uccl_ep.tools.bench.model.compare import CompareOptions, throughput_call


@dataclass(frozen=True)
class RebalanceOptions:
    """What is counted; as the command's options. Defaults are DeepSeek-V3's shapes."""

    ranks: int = 32
    ranks_per_node: int = 8
    mode: str = "low-latency"
    routing: str = "skewed"
    tokens: int = 128
    hidden: int = 7168
    topk: int = 8
    experts: int = 256
    redundant: int = 32
    before: Path | None = None
    after: Path | None = None
    row_format: str = "fp8"
    network: str = "cx7"
    intermediate: int = 2048
    weight_bytes: float = 1.0
    state_bytes: float = 0.0
    row_us: float = 0.0
    seed: int = 0

    def check(self) -> None:
        """Raises InvalidArgument for what cannot be counted; names the option."""
        CompareOptions(
            ranks=(self.ranks,),
            ranks_per_node=self.ranks_per_node,
            modes=(self.mode,),
            routings=(self.routing,),
            tokens=self.tokens,
            hidden=self.hidden,
            topk=self.topk,
            experts=self.experts,
            row_format=self.row_format,
            network=self.network,
        ).check()
        slots = self.experts + self.redundant
        if self.redundant < 0 or slots % self.ranks or slots > self.experts * self.ranks:
            allowed = f"0 or more, so that {self.ranks} ranks share --experts={self.experts} and these slots equally"
            refuse("--redundant", self.redundant, allowed)
        if not 0 <= self.row_us < 1e6:
            refuse("--row-us", self.row_us, "0 to 1e6 microseconds")


def rebalance(options: RebalanceOptions) -> dict[str, Any]:
    """{"benchmark", "options", "slots", "expert_bytes", "moves", "before", "after", "move_us", "saved_us",
    "pays_after"}; bytes, and microseconds by the formulas of cost_model/rebalancing.py.

    Raises:
        InvalidArgument: the options cannot be counted, or a file holds no placement of these experts over these ranks.
    """
    options.check()
    cluster, network = Cluster.even(options.ranks, options.ranks_per_node), NETWORKS[options.network]
    kind = (options.routing, options.ranks, options.tokens, options.topk, options.experts, options.seed)
    routing = make_routing(*kind)
    slots = options.experts + options.redundant
    before = _read("--before", options.before, options)
    after = _read("--after", options.after, options)
    if before is None:
        before = placement.linear(options.experts, slots)
    if after is None:
        load = placement.rows_of_experts(routing, options.experts)
        after = placement.balanced(load, options.ranks, slots)
    expert = Expert.gated(options.hidden, options.intermediate, options.weight_bytes, options.state_bytes)
    placed = Placements(before, after, options.experts, cluster)
    found = count(routing, placed, lambda demand: _calls(options, demand), expert, network, options.row_us)
    moved = found.moves
    links = {"inside": moved.inside, "between": moved.between}
    return {
        "benchmark": "rebalance",
        "options": asdict(options) | {"before": str(options.before or ""), "after": str(options.after or "")},
        "slots": len(after),
        "expert_bytes": expert.num_bytes,
        "moves": {"copies": moved.copies}
        | {f"{name}_bytes": int(matrix.sum()) for name, matrix in links.items()}
        | {f"{name}_busiest_bytes": busiest(matrix) for name, matrix in links.items()},
        "before": _shown(found.before, network, options.row_us),
        "after": _shown(found.after, network, options.row_us),
        "move_us": found.move_us,
        "saved_us": found.saved_us,
        "pays_after": found.pays_after,
    }


def _read(name: str, path: Path | None, options: RebalanceOptions) -> Ints | None:
    if path is None:
        return None
    try:
        slots = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        refuse(name, str(path), "a file with a JSON list of experts by slot", str(error))
    if not isinstance(slots, list) or not all(type(expert) is int for expert in slots):
        refuse(name, Described(f"{path}, which holds something else"), "a JSON list of experts by slot")
    return placement.checked(name, slots, options.ranks, options.experts)


def _calls(options: RebalanceOptions, demand: Demand) -> tuple[Traffic, ...]:
    if options.mode == "low-latency":
        call = ours.LowLatencyCall(options.hidden, options.row_format)
        return ours.low_latency_dispatch(demand, call), ours.low_latency_combine(demand, call)
    whole = throughput_call(options.hidden, options.topk, options.row_format)
    return ours.throughput_dispatch(demand, whole), ours.throughput_combine(demand, whole)


def _shown(step: StepCost, network: Network, row_us: float) -> dict[str, Any]:
    return {
        "wire_bytes": step.wire_bytes,
        "busiest_bytes": step.busiest_bytes,
        "busiest_rows": step.busiest_rows,
        "mean_rows": float(np.mean(step.rows)),
        "us": step.microseconds(network, row_us),
    }
