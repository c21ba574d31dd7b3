"""Finds a platform's fitted constants again, from published rows of one and two nodes only.

The search is plain: one constant after the other is moved by a step while the sum of squared log errors falls; then the
step is halved. A test holds the kept constants (`platforms.py`) against what it finds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from uccl_ep.tools.bench.scale.calibrate import simulated_us
from uccl_ep.tools.bench.scale.jobs import published_us
from uccl_ep.tools.bench.scale.platforms import Platform
from uccl_ep.tools.bench.scale.published import ROWS, Row, is_fitted

_GPU = ("gpu.node_gb_per_s", "gpu.forward_gb_per_s")
_CALL = ("gpu.start_us", "nic.message_us")
CONSTANTS: dict[str, tuple[str, ...]] = {
    "p5en": (*_GPU, *_CALL, "nic.stream_gb_per_s"),
    "p6-b200": (*_GPU, "gpu.start_us"),
    "p6-b200-aws": ("host_us",),
    "mi300x-cx7": (*_GPU, *_CALL),
    "mi300x-thor2": ("nic.gb_per_s", "nic.stream_gb_per_s"),
    "mi355x-pollara": _GPU,
    "gh200-cxi": ("gpu.node_gb_per_s", "nic.gb_per_s"),
}
"""By platform, what is fitted. GPUs that two platforms share are fitted on the first."""

_FIRST_STEP, _LAST_STEP, _GAIN = 0.2, 0.01, 1e-6


def constant(platform: Platform, name: str) -> float:
    """The value of "gpu.x", "nic.x" or "x"."""
    part, _, key = name.rpartition(".")
    return float(getattr(getattr(platform, part) if part else platform, key))


def with_constant(platform: Platform, name: str, value: float) -> Platform:
    """The platform with another value of "gpu.x", "nic.x" or "x"."""
    part, _, key = name.rpartition(".")
    if not part:
        changes: dict[str, Any] = {key: value}
        return replace(platform, **changes)
    changed = replace(getattr(platform, part), **{key: value})
    return replace(platform, gpu=changed) if part == "gpu" else replace(platform, nic=changed)


def fitted_rows(platform: Platform) -> list[Row]:
    """The rows that its constants are fitted on."""
    return [row for row in ROWS if row.platform == platform.name and is_fitted(row, platform.ranks_per_node)]


def loss(platform: Platform, rows: Sequence[Row]) -> float:
    """Sum of squared log ratios, simulated over published."""
    return sum(math.log(simulated_us(row, platform) / published_us(row, platform)) ** 2 for row in rows)


def fit(platform: Platform, advance: Callable[[], None] = lambda: None) -> Platform:
    """The platform with the constants that its fitted rows ask for; `advance` is called after each trial."""
    rows, step = fitted_rows(platform), _FIRST_STEP
    best = loss(platform, rows)
    while step > _LAST_STEP:
        moved = False
        for name in CONSTANTS[platform.name]:
            for factor in (1 + step, 1 / (1 + step)):
                trial = with_constant(platform, name, constant(platform, name) * factor)
                found = loss(trial, rows)
                advance()
                if found < best - _GAIN:
                    platform, best, moved = trial, found, True
                    break
        if not moved:
            step /= 2
    return platform
