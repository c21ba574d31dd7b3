"""A result file as run.py writes it, small and made by hand."""

from __future__ import annotations

from typing import Any


def peers_result(mode: str = "throughput", ranks: int = 4, ranks_per_node: int = 2) -> dict[str, Any]:
    times = {"median_ms": 2.0, "p50_ms": 2.0, "p99_ms": 3.0}
    side = {"dispatch": times, "combine": times, "both": times, "cpu_ms": 9.0, "ranks": []}
    ratio = {"median": 5.5, "q25": 5.0, "q75": 6.0, "least": 4.0, "most": 7.0, "pairs": 7}
    return {
        "schema": 2,
        "benchmark": "beside peers",
        "options": {
            "mode": mode,
            "ranks": ranks,
            "ranks_per_node": ranks_per_node,
            "tokens": 4096,
            "hidden": 7168,
            "topk": 8,
            "experts": 256,
        },
        "machine": {
            "cpu": "a processor",
            "cores": 2,
            "load_1min": 0.5,
            "kernel": "6.1",
            "python": "3.11",
            "time": "then",
            "loaded": {"torch": "2.13", "mpi": "Open MPI v5"},
        },
        "absent": {},
        "notes": ["a note"],
        "paths": ["load/store"],
        "sides": {"uccl_ep": side, "gloo": side},
        "pairs": {"gloo": {"dispatch": ratio, "combine": ratio, "both": ratio}},
        "forms": {"chosen": {"gloo": "once per rank"}, "tried_s": {}},
        "limit": {
            "memcpy_bytes_per_s": 1e10,
            "memcpy_ranks_at_once": 2,
            "limit_ms": {"dispatch": 0.5, "combine": 0.5, "both": 1.0},
            "share_of_limit": {"dispatch": 0.25, "combine": 0.25, "both": 0.25},
        },
        "targets": [
            {"name": "speed", "where": "here", "measured": 5.5, "wanted": 5.0, "at_least": True, "met": True},
            {"name": "cost", "where": "there", "measured": 2.0, "wanted": 1.0, "at_least": False, "met": False},
        ],
    }


def ring_result() -> dict[str, Any]:
    trip = {"p50": 900, "p99": 1800}
    rates = [{"producers": p, "width": w, "million_per_s": 10.0 * p, "of_raw": 0.8} for p in (1, 2) for w in (1, 8)]
    return {
        "benchmark": "ring",
        "rates": rates,
        "raw": {"million_per_s": 20.0, "round_trip_ns": {"p50": 400}},
        "round_trip_ns": trip,
    }
