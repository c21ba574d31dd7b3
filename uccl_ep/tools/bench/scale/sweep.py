"""Ours beside upstream, 16 to 1,024 ranks on simulated testbeds, healthy and disturbed: what it costs, who waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from uccl_ep.cost_model.cluster import Cluster, Ints
from uccl_ep.cost_model.demand import Demand
from uccl_ep.cost_model.routing import make_routing
from uccl_ep.errors import one_of, refuse
from uccl_ep.sizes import round_up
from uccl_ep.tools.bench.model.compare import MODES
from uccl_ep.tools.bench.scale.calibrate import calibrate, rows_of, summary
from uccl_ep.tools.bench.scale.fit import CONSTANTS, constant, fit
from uccl_ep.tools.bench.scale.harness import compare
from uccl_ep.tools.bench.scale.network import Conditions
from uccl_ep.tools.bench.scale.phase import Outcome, simulate
from uccl_ep.tools.bench.scale.plans import PHASES, Plan, Shape, low_latency, throughput
from uccl_ep.tools.bench.scale.platforms import Platform, platform

SIDES = {"low-latency": ("upstream", "ours", "ours, by node"), "throughput": ("upstream", "ours")}
""""ours, by node": combine reduced in the node before it crosses."""

HEALTHY = "healthy"
DISTURBANCES = ("incast", "slow rail", "slow rank")
"""incast: experts' popularity falls as 1/rank. slow rail: the NICs of local index 0 on every node at half rate. slow
rank: rank 0 begins late."""

LATE_SHARE = 0.05  # a rank counts as delayed from this share of its healthy time


@dataclass(frozen=True)
class ScaleOptions:
    """What is simulated. Shapes are DeepSeek-V3's."""

    platforms: tuple[str, ...] = ("p5en", "mi300x-cx7")
    ranks: tuple[int, ...] = (16, 64, 256, 1024)
    disturbed: tuple[int, ...] = (64,)  # of these, also with disturbances
    modes: tuple[str, ...] = MODES
    tokens: int = 128
    throughput_tokens: int = 1024
    hidden: int = 7168
    topk: int = 8
    experts: int = 256  # at least
    row_format: str = "fp8"
    late_us: float = 500.0
    seed: int = 0
    refit: bool = False

    def check(self) -> None:
        """Refuses what cannot be simulated.

        Raises:
            InvalidArgument: names the option, its value and what is allowed.
        """
        for name in self.platforms:
            platform(name)
        for mode in self.modes:
            if mode not in MODES:
                refuse("--mode", mode, one_of(MODES))
        for option, counts in (("--ranks", self.ranks), ("--disturbed", self.disturbed)):
            for count in counts:
                if not 2 <= count <= 4096:
                    refuse(option, count, "2 to 4096")
        for option, number in (
            ("--tokens", self.tokens),
            ("--throughput-tokens", self.throughput_tokens),
            ("--experts", self.experts),
        ):
            if not 1 <= number <= 1 << 16:
                refuse(option, number, f"1 to {1 << 16}")
        if not 1 <= self.topk <= 32:
            refuse("--topk", self.topk, "1 to 32")
        if self.hidden < 512 or self.hidden % 512 or self.hidden > 1 << 15:
            refuse("--hidden", self.hidden, f"a multiple of 512 up to {1 << 15}")
        if self.row_format not in ("bf16", "fp8"):
            refuse("--format", self.row_format, "bf16 or fp8")
        if not 0 <= self.late_us <= 1e6:
            refuse("--late-us", self.late_us, "0 to 1e6")

    @property
    def counts(self) -> tuple[int, ...]:
        """All rank counts, ascending."""
        return tuple(sorted({*self.ranks, *self.disturbed}))

    @property
    def steps(self) -> int:
        """Pieces of work that `scale` announces, but for a fit's."""
        sides = sum(len(SIDES[mode]) for mode in self.modes)
        kinds = sum(1 + len(DISTURBANCES) * (count in self.disturbed) for count in self.counts)
        return 1 + len(rows_of(self.platforms, self.modes)) + kinds * sides * len(PHASES) * len(self.platforms)


def scale(options: ScaleOptions, advance: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Calibrates, then runs both sides.

    Returns:
        {"benchmark", "simulated": True, "options", "constants", "calibration", "summary", "harness", "rows", "ratios",
        "disturbances"}. `advance` is called after each piece of work.

    Raises:
        InvalidArgument: the options cannot be simulated.
    """
    options.check()
    platforms = [platform(name) for name in options.platforms]
    if options.refit:
        platforms = [fit(one) for one in platforms]
    calibration = calibrate(platforms, options.modes, options.seed, advance)
    compared = compare(options.seed)
    advance()
    rows = [row for count in options.counts for row in _of_count(options, platforms, count, advance)]
    return {
        "benchmark": "scale",
        "simulated": True,
        "options": asdict(options),
        "constants": {p.name: {name: constant(p, name) for name in CONSTANTS[p.name]} for p in platforms},
        "calibration": calibration,
        "summary": summary(calibration),
        "harness": compared,
        "rows": rows,
        "ratios": ratios(rows),
        "disturbances": disturbances(rows),
    }


def demand_for(options: ScaleOptions, mode: str, ranks: int, per_node: int, kind: str) -> Demand:
    """A routing of a job of so many ranks."""
    experts = round_up(max(options.experts, ranks), ranks)
    tokens = options.tokens if mode == "low-latency" else options.throughput_tokens
    routing = make_routing(kind, ranks, tokens, options.topk, experts, options.seed)
    return Demand(routing, Cluster.even(ranks, per_node), experts)


def conditions_for(name: str, one: Platform, ranks: int, late_us: float) -> Conditions:
    """What a disturbance does to NICs and to the start of ranks."""
    found = Conditions.healthy(one, ranks)
    if name == "slow rail":
        found.nic_share[np.arange(ranks) % one.ranks_per_node == 0] = 0.5
    elif name == "slow rank":
        found.late_us[0] = late_us
    return found


def affected_ranks(name: str, one: Platform, demand: Demand) -> Ints:
    """The ranks that a disturbance is about: of incast, the node whose ranks receive most."""
    ranks = demand.cluster.num_ranks
    if name == "slow rail":
        return np.flatnonzero(np.arange(ranks) % one.ranks_per_node == 0)
    if name == "slow rank":
        return np.zeros(1, np.int64)
    by_node = np.bincount(demand.cluster.node_of, weights=demand.crossing.sum(axis=0))
    return np.flatnonzero(demand.cluster.node_of == by_node.argmax())


def _of_count(
    options: ScaleOptions, platforms: list[Platform], ranks: int, advance: Callable[[], None]
) -> Iterator[dict[str, Any]]:
    shape = Shape(options.hidden, options.topk, options.row_format)
    kinds = (HEALTHY, *(DISTURBANCES if ranks in options.disturbed else ()))
    for mode in options.modes:
        make = low_latency if mode == "low-latency" else throughput
        for one in platforms:
            usual = demand_for(options, mode, ranks, one.ranks_per_node, "random")
            crowded = demand_for(options, mode, ranks, one.ranks_per_node, "skewed") if len(kinds) > 1 else usual
            for side in SIDES[mode]:
                for phase in PHASES:
                    plans = {False: make(side, phase, usual, shape, one.efa)}
                    if len(kinds) > 1:
                        plans[True] = make(side, phase, crowded, shape, one.efa)
                    for row in _of_plan(options, one, plans, kinds):
                        yield {"mode": mode, "phase": phase, **row}
                        advance()


def _of_plan(
    options: ScaleOptions, one: Platform, plans: dict[bool, Plan], kinds: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    healthy: Outcome | None = None
    for kind in kinds:
        plan = plans[kind == "incast"]
        ranks = plan.demand.cluster.num_ranks
        outcome = simulate(plan, one, conditions_for(kind, one, ranks, options.late_us), options.seed)
        row = {
            "platform": one.name,
            "ranks": ranks,
            "condition": kind,
            "side": plan.name,
            "us": outcome.slowest_us,
            "mean_us": float(outcome.done_us.mean()),
            "messages": outcome.messages,
            "bytes": outcome.num_bytes,
            "parked": outcome.parked,
            "deepest": outcome.deepest,
        }
        if healthy is None:
            healthy = outcome
        else:
            row |= who_waits(outcome, healthy, affected_ranks(kind, one, plan.demand))
        yield row


def who_waits(outcome: Outcome, healthy: Outcome, affected: Ints) -> dict[str, float]:
    """Delays against the healthy run, rank by rank.

    Returns:
        {"cost_us": of the slowest rank, "affected_us", "others_us": mean delay of the ranks that the disturbance is
        about and of all others, "others_delayed": share of the others that end at least 5 % later, "blamed": share of
        all ranks for whom something of an affected rank came last}.
    """
    delay = outcome.done_us - healthy.done_us
    inside = np.zeros(len(delay), np.bool_)
    inside[affected] = True
    others = delay[~inside] if not inside.all() else np.zeros(1)
    late = others >= LATE_SHARE * (healthy.done_us[~inside] if not inside.all() else 1.0)
    return {
        "cost_us": outcome.slowest_us - healthy.slowest_us,
        "affected_us": float(delay[inside].mean()),
        "others_us": float(others.mean()),
        "others_delayed": float(late.mean()),
        "blamed": float(inside[outcome.waited_for].mean()),
    }


def rounds(rows: list[dict[str, Any]]) -> dict[tuple[str, str, int, str, str], float]:
    """(platform, mode, ranks, condition, side): microseconds of dispatch and combine. "ours, by node" shares the
    dispatch of "ours"."""
    found: dict[tuple[str, str, int, str, str], float] = {}
    for row in rows:
        key = (row["platform"], row["mode"], row["ranks"], row["condition"], row["side"])
        found[key] = found.get(key, 0.0) + row["us"]
    return found


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Round times of both sides without disturbance, and ours over upstream's."""
    times = rounds(rows)
    found = []
    for (name, mode, ranks, condition, side), us in times.items():
        if condition != HEALTHY or side != "upstream":
            continue
        entry: dict[str, Any] = {"platform": name, "mode": mode, "ranks": ranks, "upstream_us": us}
        for other in SIDES[mode][1:]:
            key = "node" if "node" in other else "ours"
            entry[f"{key}_us"] = times[name, mode, ranks, HEALTHY, other]
            entry[f"{key}_ratio"] = entry[f"{key}_us"] / us
        found.append(entry)
    return found


def disturbances(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Round times with a disturbance, over the healthy ones; delays are those of the phase that suffers most."""
    times = rounds(rows)
    found = []
    for key, us in times.items():
        name, mode, ranks, condition, side = key
        if condition == HEALTHY:
            continue
        of_key = [r for r in rows if (r["platform"], r["mode"], r["ranks"], r["condition"], r["side"]) == key]
        worst = max(of_key, key=lambda row: float(row["cost_us"]))
        healthy = times[name, mode, ranks, HEALTHY, side]
        found.append(
            {
                "platform": name,
                "mode": mode,
                "ranks": ranks,
                "condition": condition,
                "side": side,
                "us": us,
                "times_healthy": us / healthy,
                "phase": worst["phase"],
                **{k: worst[k] for k in ("cost_us", "affected_us", "others_us", "others_delayed", "blamed")},
            }
        )
    return found
