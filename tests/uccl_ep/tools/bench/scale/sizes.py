"""Small jobs and testbeds with round numbers, so that times can be computed by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from uccl_ep.cost_model.cluster import Cluster
from uccl_ep.cost_model.demand import Demand
from uccl_ep.cost_model.routing import make_routing
from uccl_ep.cost_model.traffic import Flow, Traffic
from uccl_ep.tools.bench.scale.network import Conditions, Messages
from uccl_ep.tools.bench.scale.platforms import Gpu, Nic, Platform


def plain(**of_nic: Any) -> Platform:
    """1 GB/s (1,000 bytes a microsecond), nothing a message, 2 us of latency, no jitter, no cost but the wire's."""
    nic = replace(Nic("plain", 1, 1.0, 0.0, 2.0, 0.0, False), **of_nic)
    return Platform("plain", Gpu("plain", 1e9, 1e9, 1e9, 0.0), nic, ranks_per_node=2, proxy_us=0.0, threads=1)


def messages(*each: tuple[int, int, float]) -> Messages:
    """(source, target, bytes) in order of issue."""
    source, target, num_bytes = (np.asarray(column) for column in zip(*each, strict=True))
    place = np.asarray([int((source[:i] == source[i]).sum()) for i in range(len(source))])
    return Messages(source.astype(np.int64), target.astype(np.int64), num_bytes.astype(np.float64), place)


def healthy(platform: Platform, ranks: int) -> Conditions:
    return Conditions.healthy(platform, ranks)


def traffic(ranks: int, *writes: tuple[int, int, int, int]) -> Traffic:
    """(source, target, writes, bytes of each) as one flow "rows"."""
    count, num_bytes = np.zeros((ranks, ranks), np.int64), np.zeros((ranks, ranks), np.int64)
    for source, target, number, each in writes:
        count[source, target], num_bytes[source, target] = number, number * each
    return Traffic((Flow("rows", count, num_bytes),))


def demand(ranks: int = 4, per_node: int = 2, tokens: int = 16, kind: str = "random") -> Demand:
    routing = make_routing(kind, ranks, tokens, 2, 2 * ranks)
    return Demand(routing, Cluster.even(ranks, per_node), 2 * ranks)
