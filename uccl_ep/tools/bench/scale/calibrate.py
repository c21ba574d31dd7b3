"""Upstream's traffic through the simulated testbeds, beside every figure that was published of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

from uccl_ep.tools.bench.model.compare import MODES
from uccl_ep.tools.bench.scale.jobs import plans_of, published_us
from uccl_ep.tools.bench.scale.network import Conditions
from uccl_ep.tools.bench.scale.phase import simulate
from uccl_ep.tools.bench.scale.platforms import Platform
from uccl_ep.tools.bench.scale.published import HARNESS, ROWS, TABLE, Row, is_fitted

TARGET = 0.2
"""Largest error that is asked for, of every row."""


def simulated_us(row: Row, platform: Platform, seed: int = 0) -> float:
    """What the simulation says for the job of a row: the slowest rank's microseconds."""
    healthy = Conditions.healthy(platform, row.ranks)
    host_us = platform.host_us if row.mode == "throughput" else 0.0
    return host_us + sum(simulate(plan, platform, healthy, seed).slowest_us for plan in plans_of(row, platform))


def rows_of(platforms: Iterable[str], modes: Sequence[str] = MODES) -> list[Row]:
    """Published rows of these platforms and modes, in the order in which they stand."""
    names = set(platforms)
    return [row for row in ROWS if row.platform in names and row.mode in modes]


def calibrate(
    platforms: Sequence[Platform],
    modes: Sequence[str] = MODES,
    seed: int = 0,
    advance: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:
    """One entry for each published row.

    Returns:
        {"platform", "mode", "ranks", "phase", "format", "batched", "of", "published_us", "simulated_us", "error",
        "fitted", "within"}: error is simulated / published - 1; `advance` is called after each row.
    """
    by_name = {platform.name: platform for platform in platforms}
    found = []
    for row in rows_of(by_name, modes):
        platform = by_name[row.platform]
        published, simulated = published_us(row, platform), simulated_us(row, platform, seed)
        error = simulated / published - 1
        found.append(
            {
                "platform": row.platform,
                "mode": row.mode,
                "ranks": row.ranks,
                "phase": row.phase,
                "format": row.row_format,
                "batched": row.batched,
                "of": row.of,
                "published_us": published,
                "simulated_us": simulated,
                "error": error,
                "fitted": is_fitted(row, platform.ranks_per_node),
                "within": abs(error) <= TARGET,
            }
        )
        advance()
    return found


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """How many rows are within the target: of the table fitted and predicted, then of other sources.

    Returns:
        {"rows", "count", "within", "median_error"} for each kind that occurs; the median is of absolute errors.
    """
    kinds = (
        ("table, fitted (up to two nodes)", [r for r in rows if r["of"] == TABLE and r["fitted"]]),
        ("table, predicted (three nodes and more)", [r for r in rows if r["of"] == TABLE and not r["fitted"]]),
        ("AWS's harness, fitted (two nodes)", [r for r in rows if r["of"] == HARNESS and r["fitted"]]),
        ("AWS's harness, predicted (four nodes)", [r for r in rows if r["of"] == HARNESS and not r["fitted"]]),
        ("other sources, predicted", [r for r in rows if r["of"] not in (TABLE, HARNESS)]),
    )
    return [
        {
            "rows": name,
            "count": len(some),
            "within": sum(row["within"] for row in some),
            "median_error": median(abs(row["error"]) for row in some),
        }
        for name, some in kinds
        if some
    ]
