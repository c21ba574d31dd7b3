"""Both modes on one GPU that plays every rank: rounds of any shape, one after the other, to the bit."""

from __future__ import annotations

from typing import Any

import pytest

from bench.device.platforms import Platform
from tests.end_to_end.steps import LowLatencyStep, Step, ThroughputStep
from tests.end_to_end.world import World
from tests.gpu.calls import buffer_for, low_latency, some_low_latency, some_throughput, throughput
from tests.gpu.places import run

ROUNDS = {"cpu": 3, "fake": 3}  # a real GPU plays more
WORLDS = {
    "1 rank": World(1),
    "2 ranks": World(2),
    "2 nodes of 1": World(2, 1),
    "2 nodes of 2": World(4, 2),
    "8 ranks": World(8),
    "2 nodes of 4": World(8, 4),
    "4 nodes of 2": World(8, 2),
    "nodes of 3 and 2": World(5, 3),
}

pytestmark = pytest.mark.timeout(120)


def _play(group: Any, platform: Platform, steps: list[Step], world: World) -> None:
    with buffer_for(group, platform, steps, world.ranks_per_node) as buffer:
        for step in steps:
            if isinstance(step, LowLatencyStep):
                low_latency(buffer, platform, step)
            else:
                throughput(buffer, platform, step, world.node_sizes)


def _rounds(platform: Platform) -> int:
    return ROUNDS.get(platform.device if platform.driver is None else "fake" if platform.name == "Fake" else "", 12)


@pytest.mark.parametrize("world", WORLDS.values(), ids=list(WORLDS))
def test_gpu_low_latency_is_row_exact(platform: Platform, world: World) -> None:
    run(platform, world, _play, [some_low_latency(100 + n) for n in range(_rounds(platform))], world)


@pytest.mark.parametrize(
    "world", [pytest.param(w, id=name, marks=[pytest.mark.slow] * (w.ranks == 8)) for name, w in WORLDS.items()]
)
def test_gpu_throughput_is_row_exact(platform: Platform, world: World) -> None:
    run(platform, world, _play, [some_throughput(200 + n) for n in range(_rounds(platform))], world)


def test_gpu_both_modes_share_a_buffer(platform: Platform) -> None:
    steps = [make(300 + n) for n in range(4) for make in (some_low_latency, some_throughput)]
    run(platform, World(4, 2), _play, steps, World(4, 2))


@pytest.mark.parametrize("traffic", ["all_unused", "duplicates", "hot_expert", "no_tokens"])
def test_gpu_odd_traffic_is_row_exact(platform: Platform, traffic: str) -> None:
    steps: list[Step] = [
        LowLatencyStep(7, traffic=traffic, format="fp8", send="hook"),
        ThroughputStep(8, traffic=traffic, num_cached=1, num_bias=1, use_async=True),
        LowLatencyStep(9, traffic=traffic, combine="zero_copy"),
        ThroughputStep(10, traffic=traffic, worst=True),
    ]
    run(platform, World(4, 2), _play, steps, World(4, 2))


def test_gpu_real_sizes_are_row_exact(platform: Platform) -> None:
    """DeepSeek-V3's rows: 7,168 channels. A CPU plays fewer tokens of them."""
    tokens = 128 if platform.driver is not None and platform.name != "Fake" else 4
    steps: list[Step] = [
        LowLatencyStep(11, max_tokens=tokens, hidden=7168, local_experts=8, topk=8, format="fp8"),
        LowLatencyStep(12, max_tokens=tokens, hidden=7168, local_experts=8, topk=8, format="bf16", combine="zero_copy"),
        ThroughputStep(13, max_tokens=4 * tokens, hidden=7168, local_experts=8, topk=8),
    ]
    for ranks_per_node in (0, 2):
        run(platform, World(4, ranks_per_node), _play, steps, World(4, ranks_per_node))
