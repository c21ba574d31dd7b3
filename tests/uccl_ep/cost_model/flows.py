"""Flows of a call by name."""

from __future__ import annotations

from uccl_ep.cost_model.traffic import Traffic


def by_flow(traffic: Traffic) -> dict[str, dict[str, int]]:
    """{flow: {"writes", "bytes"}} of all ranks together; flows of one name are added."""
    sums: dict[str, dict[str, int]] = {}
    for flow in traffic.flows:
        entry = sums.setdefault(flow.name, {"writes": 0, "bytes": 0})
        entry["writes"] += int(flow.writes.sum())
        entry["bytes"] += int(flow.num_bytes.sum())
    return sums
