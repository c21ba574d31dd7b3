"""Ours beside upstream's: bytes and messages of a token, for one routing and cluster after the other."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from uccl_ep._native import RowShape
from uccl_ep.cost_model import ours, wire
from uccl_ep.cost_model.choice import NETWORKS, choose
from uccl_ep.cost_model.cluster import Cluster
from uccl_ep.cost_model.demand import Demand
from uccl_ep.cost_model.routing import KINDS, make_routing
from uccl_ep.cost_model.traffic import Traffic
from uccl_ep.errors import one_of, refuse
from uccl_ep.sizes import round_up
from uccl_ep.tools.bench.model import upstream

MODES = ("low-latency", "throughput")
TARGET = 0.5
_TARGET_RANKS, _TARGET_PER_NODE, _TARGET_TOPK, _TARGET_EXPERTS = 32, 8, 8, 256

DEFAULT_FORM = "direct"
"""The combine of a job that sets nothing."""


@dataclass(frozen=True)
class CompareOptions:
    """What is compared. Defaults are DeepSeek-V3's shapes on nodes of 8."""

    ranks: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512, 1024)
    ranks_per_node: int = 8
    modes: tuple[str, ...] = MODES
    routings: tuple[str, ...] = KINDS
    tokens: int = 128  # of each rank, low latency
    throughput_tokens: int = 512  # more change nothing per token but last chunks
    hidden: int = 7168
    topk: int = 8
    experts: int = 256  # at least; more where ranks are more, or where they could not be shared equally
    row_format: str = "fp8"
    combine_format: str = "bf16"  # of ours, low latency
    network: str = "cx7"
    seed: int = 0

    def check(self) -> None:
        """Refuses what cannot be counted.

        Raises:
            InvalidArgument: names the option, its value and what is allowed.
        """
        choices = (
            ("--mode", self.modes, MODES),
            ("--routing", self.routings, KINDS),
            ("--network", (self.network,), tuple(NETWORKS)),
            ("--format", (self.row_format,), ("bf16", "fp8", "fp8-ue8m0")),
            ("--combine-format", (self.combine_format,), wire.COMBINE_FORMATS),
        )
        for name, given, allowed in choices:
            for value in given:
                if value not in allowed:
                    refuse(name, value, one_of(allowed))
        for count in self.ranks:
            if not 1 <= count <= 4096:
                refuse("--ranks", count, "1 to 4096")
        for name, number in (
            ("--ranks-per-node", self.ranks_per_node),
            ("--tokens", self.tokens),
            ("--throughput-tokens", self.throughput_tokens),
            ("--experts", self.experts),
        ):
            if not 1 <= number <= 1 << 16:
                refuse(name, number, f"1 to {1 << 16}")
        if not 1 <= self.topk <= 32:
            refuse("--topk", self.topk, "1 to 32")
        if not self.hidden or self.hidden % 512 or self.hidden > 1 << 15:
            refuse("--hidden", self.hidden, f"a multiple of 512 up to {1 << 15}")

    def num_experts(self, ranks: int) -> int:
        """Experts of a job of so many ranks."""
        return round_up(max(self.experts, ranks), ranks)


def compare(options: CompareOptions) -> dict[str, Any]:
    """{"benchmark", "options", "rows": one per mode, rank count and routing, "targets"}; of a token.

    Raises:
        InvalidArgument: the options cannot be counted.
    """
    options.check()
    rows = []
    for mode in options.modes:
        for ranks in options.ranks:
            cluster = Cluster.even(ranks, options.ranks_per_node)
            for kind in options.routings:
                rows.append(_row(options, mode, cluster, kind))
    return {
        "benchmark": "bytes",
        "options": asdict(options),
        "rows": rows,
        "targets": targets(options, rows),
    }


def _row(options: CompareOptions, mode: str, cluster: Cluster, kind: str) -> dict[str, Any]:
    experts = options.num_experts(cluster.num_ranks)
    tokens = options.tokens if mode == "low-latency" else options.throughput_tokens
    routing = make_routing(kind, cluster.num_ranks, tokens, options.topk, experts, options.seed)
    demand = Demand(routing, cluster, experts)
    sides = _low_latency if mode == "low-latency" else _throughput
    per_token = {name: _per_token(traffic, demand.tokens) for name, traffic in sides(options, demand).items()}
    row: dict[str, Any] = {
        "mode": mode,
        "ranks": cluster.num_ranks,
        "nodes": cluster.num_nodes,
        "experts": experts,
        "routing": kind,
        "tokens": tokens,
        "per_token": per_token,
        "bytes_ratio": _ratio(per_token, "bytes", DEFAULT_FORM),
        "messages_ratio": _ratio(per_token, "messages", DEFAULT_FORM),
    }
    if mode == "low-latency":
        call = ours.LowLatencyCall(options.hidden, options.row_format, options.combine_format)
        row["bytes_ratio_node"] = _ratio(per_token, "bytes", "node")
        row["messages_ratio_node"] = _ratio(per_token, "messages", "node")
        network = NETWORKS[options.network]
        row["choice"] = {phase: choose(phase, demand, call, network).as_json() for phase in ("dispatch", "combine")}
    return row


def _low_latency(options: CompareOptions, demand: Demand) -> dict[str, Traffic]:
    call = ours.LowLatencyCall(options.hidden, options.row_format, options.combine_format)
    return {
        "dispatch": ours.low_latency_dispatch(demand, call),
        "combine": ours.low_latency_combine(demand, call, "direct"),
        "combine_node": ours.low_latency_combine(demand, call, "node"),
        "upstream_dispatch": upstream.low_latency_dispatch(demand, options.hidden, options.row_format),
        "upstream_combine": upstream.low_latency_combine(demand, options.hidden),
    }


def _throughput(options: CompareOptions, demand: Demand) -> dict[str, Traffic]:
    hidden, topk = options.hidden, options.topk
    payload, scales = _payload(hidden, options.row_format)
    call = throughput_call(hidden, topk, options.row_format)
    theirs, answer = upstream.Rows(payload, scales, topk, topk), upstream.Rows(2 * hidden, weights=topk)
    return {
        "dispatch": ours.throughput_dispatch(demand, call),
        "combine": ours.throughput_combine(demand, call),
        "upstream_dispatch": upstream.throughput_dispatch(demand, theirs),
        "upstream_combine": upstream.throughput_combine(demand, answer),
    }


def _payload(hidden: int, row_format: str) -> tuple[int, int]:
    """Bytes of a dispatched row's channels, and 4-byte words of its scales."""
    scales = {"bf16": 0, "fp8": hidden // 128, "fp8-ue8m0": hidden // 512}[row_format]
    return (2 * hidden if row_format == "bf16" else hidden), scales


def throughput_call(hidden: int, topk: int, row_format: str) -> ours.ThroughputCall:
    """A dispatch with top-k ids and weights, and its combine, of a Buffer as it is usually made."""
    payload, scales = _payload(hidden, row_format)
    row = RowShape(payload, 4 * scales, topk, has_ids=True, has_weights=True)
    return ours.ThroughputCall(hidden, row, weights=True)


def _per_token(traffic: Traffic, tokens: int) -> dict[str, float]:
    return {
        "bytes": int(traffic.num_bytes.sum()) / tokens,
        "messages": int(traffic.writes.sum()) / tokens,
        "immediates": traffic.immediates / tokens,
    }


def _ratio(per_token: dict[str, dict[str, float]], what: str, form: str) -> float | None:
    """Dispatch and combine, ours over upstream's; None where upstream sends nothing."""
    combine = "combine_node" if form == "node" else "combine"
    theirs = sum(per_token[side][what] for side in ("upstream_dispatch", "upstream_combine"))
    return sum(per_token[side][what] for side in ("dispatch", combine)) / theirs if theirs else None


def targets(options: CompareOptions, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The target of 32 ranks, when they are among the rows, for each form of combine."""
    if (options.ranks_per_node, options.topk, options.experts) != (_TARGET_PER_NODE, _TARGET_TOPK, _TARGET_EXPERTS):
        return []
    found = []
    for row in rows:
        if row["ranks"] != _TARGET_RANKS or row["mode"] != "low-latency":
            continue
        for form, key in ((DEFAULT_FORM, "bytes_ratio"), ("node", "bytes_ratio_node")):
            found.append(
                {
                    "where": f"low latency, EP32 (4 x 8), top-8 of 256, {row['routing']} routing",
                    "name": f"wire bytes of dispatch + combine over upstream's, UCCL_EP_LOW_LATENCY_COMBINE={form}",
                    "wanted": TARGET,
                    "at_least": False,
                    "measured": row[key],
                    "met": row[key] <= TARGET,
                }
            )
    return found
