"""The ring benchmark: commands a second by rings, consumer threads and push width; push-to-proxy latency at a pace."""

from __future__ import annotations

import os
from typing import Any

from bench.device.clocks import latencies, percentiles
from bench.device.ring_world import CAPACITY, Clock, RingWorld, Run
from bench.device.targets import Target

WARPS_A_RING = 8  # enough pushes in flight to hide what one store over PCIe takes
PACE_PER_S = 8_000_000  # upstream's published point
WIDTHS = (1, 8, 32)
RATE_TARGET_PER_S = 50_000_000
LATENCY_TARGET_US = 8.0


def shapes(cores: int, quick: bool) -> list[tuple[int, int]]:
    """(rings, consumer threads) to measure: powers of two, threads up to what the machine has beside the caller."""
    most = max(1, cores - 1)
    rings = (1, 4) if quick else (1, 4, 8, 16, 32)
    threads = (1, 2) if quick else (1, 2, 4, 8)
    return [(r, t) for r in rings for t in threads if t <= r and t <= most]


def rate(world: RingWorld, rings: int, threads: int, width: int, seconds: float) -> dict[str, Any]:
    """Commands a second; a short run first says how many make `seconds`."""
    warps = rings * WARPS_A_RING
    pushes = 256
    seen = world.run(Run(rings, threads, width, warps, pushes))
    pushes = int(max(256, min(pushes * seconds / seen.seconds, 1 << 20)))
    seen = world.run(Run(rings, threads, width, warps, pushes))
    return {
        "rings": rings,
        "threads": threads,
        "width": width,
        "warps": warps,
        "commands": seen.taken,
        "million_per_s": seen.taken / seen.seconds / 1e6,
    }


def paced(world: RingWorld, rings: int, threads: int, per_s: int, seconds: float) -> dict[str, Any]:
    """Latency of single pushes at `per_s` commands a second over all rings."""
    before = world.clock()
    warps = rings * WARPS_A_RING
    interval = int(warps / per_s * 1e9 * before.ticks_per_ns)
    pushes = max(16, int(per_s * seconds / warps))
    commands = warps * pushes
    every = max(1, commands // 2_000_000)
    seen = world.run(Run(rings, threads, 1, warps, pushes, interval, stamped=True), commands // every, every)
    after = world.clock()
    late = latencies(seen.samples, before.comparison, after.comparison)
    return {
        "rings": rings,
        "threads": threads,
        "wanted_per_s": per_s,
        "reached_per_s": seen.taken / seen.seconds,
        "samples": len(late),
        "one_way_us": {name: value / 1e3 for name, value in percentiles(late).items()},
        "clock": _clock(before, after),
    }


def _clock(before: Clock, after: Clock) -> dict[str, float]:
    a, b = before.comparison, after.comparison
    return {
        "uncertainty_us": max(a.uncertainty_ns, b.uncertainty_ns) / 1e3,
        "drift_ppm": (b.offset_ns - a.offset_ns) / max(1, b.at_ns - a.at_ns) * 1e6,
        "step_ns": before.step_ns,
        "ticks_per_ns": before.ticks_per_ns,
    }


def round_trips(world: RingWorld, rings: int, threads: int, pushes: int) -> dict[str, Any]:
    """From a push until its producer sees it done, on the producer's clock; one command in flight a ring."""
    clock = world.clock()
    interval = int(20_000 * clock.ticks_per_ns)  # 20 us apart: rings are empty in between
    seen = world.run(Run(rings, threads, 1, rings, pushes, interval, round_trips=True))
    trips = seen.round_trips / clock.ticks_per_ns / 1e3
    found = percentiles(trips)
    return {
        "rings": rings,
        "threads": threads,
        "samples": len(trips),
        "round_trip_us": found,
        "half_us": {name: value / 2 for name, value in found.items()},
    }


def measure(world: RingWorld, quick: bool, note: Any) -> dict[str, Any]:
    """All of it; `note(result)` is called after each part with what there is so far."""
    cores = len(os.sched_getaffinity(0))
    seconds = 0.02 if quick else 0.15
    pace = PACE_PER_S // 80 if quick else PACE_PER_S
    result: dict[str, Any] = {"cores": cores, "capacity": CAPACITY, "rates": [], "paced": [], "round_trips": []}
    for rings, threads in shapes(cores, quick):
        for width in WIDTHS:
            result["rates"].append(rate(world, rings, threads, width, seconds))
            note(result)
    for rings, threads in shapes(cores, quick):
        if rings >= 4 and threads >= min(4, cores - 1):
            result["paced"].append(paced(world, rings, threads, pace, 4 * seconds))
            result["round_trips"].append(round_trips(world, rings, threads, 50 if quick else 2000))
            note(result)
    return result


def targets(result: dict[str, Any]) -> list[Target]:
    """The two figures that the ring must reach."""
    found = []
    if result.get("rates"):
        best = max(result["rates"], key=lambda r: float(r["million_per_s"]))
        where = f"{best['rings']} rings, {best['threads']} threads, width {best['width']}"
        found.append(Target("ring, commands/s", best["million_per_s"] * 1e6, RATE_TARGET_PER_S, True, where))
    kept = [p for p in result.get("paced", []) if p["reached_per_s"] >= 0.95 * PACE_PER_S]
    if kept:
        best = min(kept, key=lambda p: float(p["one_way_us"]["p99"]))
        where = f"{best['rings']} rings, {best['threads']} threads, {best['reached_per_s'] / 1e6:.2f} M commands/s"
        p99 = best["one_way_us"]["p99"]
        found.append(Target("ring, p99 push to proxy, us", p99, LATENCY_TARGET_US, False, where))
    return found
