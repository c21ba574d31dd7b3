"""AWS's comparison of three libraries on one boundary, with ours beside them: a simulated row for each published one.

Ours stands there twice. *As upstream*: its traffic and its use of the links, with every constant of upstream's, host
part included. *Mended*: what upstream's constants hide is replaced by two assumptions. Kernels pass rows on between
network and node as fast as they move them within a node, since all warps of a channel's blocks take part; and a call's
host part is what DeepEP V1 needs in the same harness, whose calls do the same. Both are assumptions until GPUs have
measured them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from uccl_ep.tools.bench.scale.calibrate import simulated_us
from uccl_ep.tools.bench.scale.jobs import plan_of_job
from uccl_ep.tools.bench.scale.network import Conditions
from uccl_ep.tools.bench.scale.phase import simulate
from uccl_ep.tools.bench.scale.plans import PHASES
from uccl_ep.tools.bench.scale.platforms import Platform, platform
from uccl_ep.tools.bench.scale.published import BOTH, HARNESS, HARNESS_US, Row

NAMES = {"low-latency": "decode", "throughput": "prefill"}
"""The harness's words: 128 and 4,096 tokens a rank, 7,168 channels, top-8."""

V1_HOST_US = 326.0
"""DeepEP V1, fp8 prefill on two nodes: 2,973 in all, of which its kernels are 1,014 and 1,633 by its own count (awslabs
RESULTS-b200.md at 46793a8d)."""


def mended(one: Platform) -> Platform:
    """The testbed with the two assumptions in place of upstream's constants."""
    return replace(one, gpu=replace(one.gpu, forward_gb_per_s=one.gpu.node_gb_per_s), host_us=V1_HOST_US)


def round_us(side: str, mode: str, ranks: int, row_format: str, one: Platform, seed: int = 0) -> float:
    """One side's dispatch, combine and host part, of the slowest rank."""
    healthy = Conditions.healthy(one, ranks)
    plans = [plan_of_job(side, mode, ranks, one, phase, row_format) for phase in PHASES]
    host_us = one.host_us if mode == "throughput" else 0.0
    return host_us + sum(simulate(plan, one, healthy, seed).slowest_us for plan in plans)


def compare(seed: int = 0) -> list[dict[str, Any]]:
    """One entry for each row of the harness.

    Returns:
        {"job": decode or prefill, "ranks", "format", "published": {library: us}, "upstream_us": simulated, "error",
        "ours_us", "mended_us", "node_us" (decode: sums in the node), "best": the fastest published library, "ratio":
        the best of ours, mended, over it}.
    """
    one = platform("p6-b200-aws")
    found = []
    for (mode, ranks, row_format), published in HARNESS_US.items():
        job = mode, ranks, row_format
        upstream = simulated_us(Row(one.name, mode, ranks, BOTH, row_format, of=HARNESS), one, seed)
        ours = [round_us("ours", *job, mended(one), seed)]
        if mode == "low-latency":
            ours.append(round_us("ours, by node", *job, mended(one), seed))
        best = min(published, key=lambda name: published[name])
        found.append(
            {
                "job": NAMES[mode],
                "ranks": ranks,
                "format": row_format,
                "published": published,
                "upstream_us": upstream,
                "error": upstream / published["UCCL"] - 1,
                "ours_us": round_us("ours", *job, one, seed),
                "mended_us": ours[0],
                **({"node_us": ours[1]} if len(ours) > 1 else {}),
                "best": best,
                "ratio": min(ours) / published[best],
            }
        )
    return found
