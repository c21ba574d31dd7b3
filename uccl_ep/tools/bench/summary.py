"""Sums up what the ranks measured: a round's slowest rank, ratios of pairs with their spread, shares of the limit."""

from __future__ import annotations

import statistics
from typing import Any

from uccl_ep.tools.bench.limit import COPY_BYTES, copied_per_s, limit_seconds, moved_bytes
from uccl_ep.tools.bench.options import BenchOptions

OURS = "uccl_ep"
PARTS = ("dispatch", "combine", "both")

# How much faster than a peer's stronger form, by mode; and the share of the memcpy limit.
WANTED = {"throughput": {"gloo": 5.0, "openmpi": 2.0}, "low-latency": {"gloo": 3.0, "openmpi": 1.5}}
WANTED_SHARE = 0.5


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of the values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def spread(values: list[float]) -> dict[str, Any]:
    """Median, quartiles and extremes of the ratios of pairs."""
    return {
        "median": statistics.median(values),
        "q25": percentile(values, 0.25),
        "q75": percentile(values, 0.75),
        "least": min(values),
        "most": max(values),
        "pairs": len(values),
    }


def _milliseconds(values: list[float]) -> dict[str, float]:
    return {
        "median_ms": statistics.median(values) * 1e3,
        "p50_ms": percentile(values, 0.5) * 1e3,
        "p99_ms": percentile(values, 0.99) * 1e3,
    }


def slowest_rounds(reports: list[dict[str, Any]], side: str) -> dict[str, list[float]]:
    """By part, the slowest rank's seconds of each round. `both` is their sum: each begins when all ranks have come."""
    rounds = list(zip(*(r["times"][side] for r in reports), strict=True))
    dispatch = [max(d for d, _, _ in of) for of in rounds]
    combine = [max(c for _, c, _ in of) for of in rounds]
    return {"dispatch": dispatch, "combine": combine, "both": [d + c for d, c in zip(dispatch, combine, strict=True)]}


def _side(reports: list[dict[str, Any]], side: str) -> dict[str, Any]:
    slowest = slowest_rounds(reports, side)
    found: dict[str, Any] = {part: _milliseconds(slowest[part]) for part in PARTS}
    rounds = zip(*(report["times"][side] for report in reports), strict=True)
    found["cpu_ms"] = statistics.median(sum(cpu for _, _, cpu in of) for of in rounds) * 1e3  # of all ranks together
    found["ranks"] = [
        {
            "dispatch": _milliseconds([d for d, _, _ in report["times"][side]]),
            "combine": _milliseconds([c for _, c, _ in report["times"][side]]),
        }
        for report in reports
    ]
    return found


def _limit(options: BenchOptions, reports: list[dict[str, Any]], sides: dict[str, Any]) -> dict[str, Any]:
    ours = sides[OURS]
    rows = sum(report["output_rows"] for report in reports)
    copied = copied_per_s([report["copies"] for report in reports if report["copies"]])
    seconds = limit_seconds(options, rows, copied)
    times = {"dispatch": seconds, "combine": seconds, "both": 2 * seconds}
    found: dict[str, Any] = {
        "memcpy_bytes_per_s": copied,
        "memcpy_ranks_at_once": sum(bool(report["copies"]) for report in reports),
        "memcpy_bytes_of_one": COPY_BYTES,
        "bytes_read_and_written_of_a_phase": moved_bytes(options, rows),
        "limit_ms": {part: times[part] * 1e3 for part in PARTS},
        "share_of_limit": {part: times[part] * 1e3 / ours[part]["median_ms"] for part in PARTS},
    }
    if reports[0].get("sockets"):
        floor = found["sockets"] = _floor(options, reports, rows, copied)
        both = floor["floor_ms"]["both"]
        floor["share_of_floor"] = both / ours["both"]["median_ms"]
        floor["at_best"] = {peer: row["both"]["median_ms"] / both for peer, row in sides.items() if peer != OURS}
        floor["at_best"]["memcpy"] = found["limit_ms"]["both"] / both
    return found


def _floor(options: BenchOptions, reports: list[dict[str, Any]], rows: float, copied: float) -> dict[str, Any]:
    """What bare sockets and memcpy take together: a row that crosses nodes is read and written once by its socket, and
    what else must be read and written goes at memcpy's speed."""
    crossing = sum(report["crossing_rows"] for report in reports) * options.row_bytes
    sockets = statistics.median(max(of) for of in zip(*(report["sockets"] for report in reports), strict=True))
    rest = max(0.0, moved_bytes(options, rows) - 2 * crossing) / 2 / copied
    return {
        "bytes_that_cross_in_a_phase": crossing,
        "socket_ms": {"dispatch": sockets * 1e3, "combine": sockets * 1e3, "both": 2 * sockets * 1e3},
        "floor_ms": {part: (sockets + rest) * 1e3 * (2 if part == "both" else 1) for part in PARTS},
    }


def summarise(options: BenchOptions, reports: list[dict[str, Any]]) -> dict[str, Any]:
    """What goes into the file beside options and machine.

    Args:
        options: what was measured.
        reports: of every rank, in rank order (worker.py).
    """
    sides = {side: _side(reports, side) for side in reports[0]["times"]}
    ours = slowest_rounds(reports, OURS)
    pairs: dict[str, Any] = {}
    for peer in sides:
        if peer != OURS:
            theirs = slowest_rounds(reports, peer)
            pairs[peer] = {
                part: spread([p / o for o, p in zip(ours[part], theirs[part], strict=True)]) for part in PARTS
            }
    limit = _limit(options, reports, sides)
    return {
        "sides": sides,
        "pairs": pairs,
        "forms": {"chosen": reports[0]["forms"], "tried_s": reports[0]["tried"]},
        "limit": limit,
        "targets": targets(options, pairs, limit) if has_targets(options) else [],
    }


def has_targets(options: BenchOptions) -> bool:
    """Targets are for DeepSeek-V3's shape and for each side's faster form, ours too."""
    return options == options.shaped("v3") and options.outputs == "shared" and options.combine == "auto"


def where(options: BenchOptions) -> str:
    """The measurement in a few words, as tables and targets name it."""
    nodes = "" if options.num_nodes == 1 else f" on {options.num_nodes} nodes"
    return f"{options.mode}, {options.ranks} ranks{nodes}"


def targets(options: BenchOptions, pairs: dict[str, Any], limit: dict[str, Any]) -> list[dict[str, Any]]:
    """One entry a target: name, where, measured, wanted, at_least, met; over tcp also at_best: what bare sockets and
    memcpy would measure in its place."""
    found = []
    for peer, ratios in pairs.items():
        found.append((peer, f"times as fast as {peer}", ratios["both"]["median"], WANTED[options.mode][peer]))
    found.append(("memcpy", "share of the memcpy limit", limit["share_of_limit"]["both"], WANTED_SHARE))
    best = limit["sockets"]["at_best"] if "sockets" in limit else {}
    return [
        {
            "name": name,
            "where": where(options),
            "measured": measured,
            "wanted": wanted,
            "at_least": True,
            "met": measured >= wanted,
            **({"at_best": {"of": "bare sockets and memcpy", "measured": best[beside]}} if beside in best else {}),
        }
        for beside, name, measured, wanted in found
    ]
