"""How costs grow: one size at a time, from the model, with the law that fits; and why where it is worse than linear."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from uccl_ep._native import RowShape
from uccl_ep.cost_model import ours
from uccl_ep.cost_model.cluster import Cluster
from uccl_ep.cost_model.demand import Demand
from uccl_ep.cost_model.routing import make_routing
from uccl_ep.cost_model.traffic import Traffic
from uccl_ep.errors import one_of, refuse
from uccl_ep.sizes import round_up

AXES = ("tokens", "hidden", "topk", "ranks", "nodes")
LINEAR = 1.05
"""The largest exponent that still counts as linear: fits of few points are a little off."""
STEEP = 1.15
"""The same between two neighbouring sizes, where chance weighs more."""


@dataclass(frozen=True)
class GrowthShape:
    """A job: `ranks` over `nodes` equal nodes, tokens of each rank, channels, choices, experts at least."""

    tokens: int = 128
    hidden: int = 7168
    topk: int = 8
    ranks: int = 32
    nodes: int = 4
    experts: int = 256

    @property
    def num_experts(self) -> int:
        """Experts that the ranks can share."""
        return round_up(max(self.experts, self.ranks), self.ranks)

    def demand(self, seed: int = 0) -> Demand:
        """Random routing over these nodes."""
        routing = make_routing("random", self.ranks, self.tokens, self.topk, self.num_experts, seed)
        return Demand(routing, Cluster.even(self.ranks, -(-self.ranks // self.nodes)), self.num_experts)


SWEEPS: dict[str, tuple[int, ...]] = {
    "tokens": (16, 32, 64, 128, 256, 512),
    "hidden": (1024, 2048, 4096, 7168, 14336),
    "topk": (1, 2, 4, 8, 16),
    "ranks": (16, 32, 64, 128, 256),  # nodes of 8
    "nodes": (2, 4, 8, 16, 32),  # of 32 ranks
}

_MORE_NODES = (
    "a token's choices fall on more nodes until each has one of its own, and less of them stay at home: the share "
    "(1 - 1/nodes) and the nodes a token visits both have a bound (1, and top-k), so it flattens"
)
_SHORTER_RUNS = (
    "with few nodes nearly every token visits each, and neighbours share a write; with more, runs break up, up to one "
    "write for each row (upstream has one for each expert from the start)"
)
_SHARED_CORES = (
    "all ranks share this machine's cores, so their work adds up; on cores of its own a rank does its part only"
)
_NETWORK_BEGINS = (
    "on one node nothing crosses; between nodes every row passes two proxies and is copied once more, and the proxies' "
    "threads share this machine's cores with the ranks"
)
_CACHES = "larger rows and tables leave the caches that small ones fit into"
_TIMES = tuple(f"{mode}: {part} time" for mode in ("low latency", "throughput") for part in ("dispatch", "combine"))

EXPLANATIONS: dict[tuple[str, ...], dict[str, str]] = {
    ("ranks", "nodes"): {
        "low latency: dispatch bytes": _MORE_NODES,
        "throughput: dispatch bytes": _MORE_NODES,
        "throughput: combine bytes": _MORE_NODES,
        "low latency: dispatch messages": _SHORTER_RUNS,
        "throughput: dispatch messages": _MORE_NODES,
        "throughput: combine messages": _MORE_NODES,
        "low latency: combine bytes": _MORE_NODES,
        "low latency: combine messages": _MORE_NODES,
    },
    ("ranks",): dict.fromkeys(_TIMES, _SHARED_CORES),
    ("nodes",): dict.fromkeys(_TIMES, _NETWORK_BEGINS),
    ("tokens", "hidden", "topk"): dict.fromkeys(_TIMES, _CACHES),
}
"""(axes) -> quantity -> why it may be worse than linear, over the whole range or a part of it."""


def checked_axes(axes: Sequence[str]) -> tuple[str, ...]:
    """`axes`.

    Raises:
        InvalidArgument: one is none of AXES.
    """
    for axis in axes:
        if axis not in AXES:
            refuse("--axis", axis, one_of(AXES))
    return tuple(axes)


def shape_at(base: GrowthShape, axis: str, value: int) -> GrowthShape:
    """`base` with one size changed. More ranks are more nodes of the same size."""
    if axis == "ranks":
        return replace(base, ranks=value, nodes=max(1, value * base.nodes // base.ranks))
    return replace(base, **{axis: value})


def quantities(shape: GrowthShape) -> dict[str, float]:
    """Of one rank and call, by "mode: what": wire bytes and messages of low latency (fp8 out, bf16 back) and of
    throughput (bf16), and bytes of memory that low latency takes."""
    from uccl_ep.layout.plan import memory_bill  # loads the native module

    demand = shape.demand()
    call = ours.LowLatencyCall(shape.hidden, "fp8")
    row = RowShape(2 * shape.hidden, topk=shape.topk, has_ids=True, has_weights=True)
    streams = ours.ThroughputCall(shape.hidden, row)
    per_node = -(-shape.ranks // shape.nodes)
    parts = {
        "low latency: dispatch": ours.low_latency_dispatch(demand, call),
        "low latency: combine": ours.low_latency_combine(demand, call, "direct"),
        "throughput: dispatch": ours.throughput_dispatch(demand, streams),
        "throughput: combine": ours.throughput_combine(demand, streams),
    }
    found: dict[str, float] = {}
    for name, traffic in parts.items():
        found |= {f"{name} {what}": value for what, value in _of_a_rank(traffic, shape.ranks).items()}
    bill = memory_bill(shape.tokens, shape.hidden, shape.ranks, shape.num_experts, ranks_per_node=per_node)
    found["low latency: memory"] = float(bill.total_bytes)
    return found


def _of_a_rank(traffic: Traffic, ranks: int) -> dict[str, float]:
    return {"bytes": int(traffic.num_bytes.sum()) / ranks, "messages": int(traffic.writes.sum()) / ranks}


def fit_exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """The slope of log(value) over log(size), least squares: 1 is linear, 2 quadratic. None with fewer than two values
    above 0."""
    points = [(math.log(s), math.log(v)) for s, v in zip(sizes, values, strict=True) if s > 0 and v > 0]
    if len(points) < 2:
        return None
    middle_x, middle_y = (sum(column) / len(points) for column in zip(*points, strict=True))
    spread = sum((x - middle_x) ** 2 for x, _ in points)
    return sum((x - middle_x) * (y - middle_y) for x, y in points) / spread if spread else None


def steepest(sizes: Sequence[float], values: Sequence[float]) -> tuple[float, float, float] | None:
    """(exponent, from, to) of the neighbouring sizes between which it is the largest; None with fewer than two."""
    pairs = zip(sizes[1:], sizes[:-1], values[1:], values[:-1], strict=True)
    slopes = [(math.log(w / v) / math.log(t / f), f, t) for t, f, w, v in pairs if v > 0 and w > 0]
    return max(slopes, default=None)


def judge(
    axis: str, quantity: str, exponent: float | None, most: tuple[float, float, float] | None = None
) -> dict[str, Any]:
    """{"exponent", "growth": in words, "reason": why it is worse than linear, in all or between two sizes; else ""}."""
    if exponent is None:
        return {"exponent": None, "growth": "nothing to fit", "reason": ""}
    known = (table[quantity] for axes, table in EXPLANATIONS.items() if axis in axes and quantity in table)
    reason = next(known, "unexplained")
    if exponent > LINEAR:
        return {"exponent": exponent, "growth": "worse than linear", "reason": reason}
    words = "linear" if exponent > 2 - LINEAR else "less than linear" if exponent > 0.05 else "does not grow"
    if most is None or most[0] <= STEEP:
        return {"exponent": exponent, "growth": words, "reason": ""}
    return {"exponent": exponent, "growth": f"{words}; {most[0]:.2f} at {most[1]:g} to {most[2]:g}", "reason": reason}


def growth(base: GrowthShape, axes: Sequence[str] = AXES) -> list[dict[str, Any]]:
    """An entry of `fitted` for each axis, from the model."""
    found = []
    for axis in axes:
        sizes = [size for size in SWEEPS[axis] if axis != "nodes" or base.ranks % size == 0]
        columns = [quantities(shape_at(base, axis, size)) for size in sizes]
        found.append(fitted(axis, base, sizes, columns))
    return found


def fitted(
    axis: str, base: GrowthShape, sizes: Sequence[int], columns: Sequence[dict[str, float]], counted: bool = True
) -> dict[str, Any]:
    """{"axis", "base", "sizes", "values": {quantity: [...]}, "fits": {quantity: judge(...)}} of the
    quantities at each size. What was measured and not counted is too noisy to be judged between two sizes."""
    values = {name: [column[name] for column in columns] for name in columns[0]}
    fits = {}
    for name, series in values.items():
        exponent = fit_exponent(sizes, series)
        fits[name] = judge(axis, name, exponent, steepest(sizes, series) if counted else None)
    return {"axis": axis, "base": asdict(base), "sizes": list(sizes), "values": values, "fits": fits}
