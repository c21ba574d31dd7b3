"""A thousand rounds in a row, both modes, nothing between them: no round may reach into the next."""

from __future__ import annotations

from typing import Any

import pytest

from tests.end_to_end.play import make_buffer, playing
from tests.end_to_end.steps import LowLatencyStep, Step, ThroughputStep
from tests.end_to_end.world import Crew, World, as_threads

_FORMATS = ("bf16", "fp8", "fp8_round_scale", "fp8_ue8m0")
_SENDS = ("sync", "hook", "async")


def _low_latency(number: int) -> LowLatencyStep:
    return LowLatencyStep(number, max_tokens=6, hidden=128, format=_FORMATS[number % 4], send=_SENDS[number % 3])


def _throughput(number: int) -> ThroughputStep:
    return ThroughputStep(number, max_tokens=10, hidden=64, num_bias=number % 3, use_async=number % 2 == 1)


def _rounds(group: Any, ranks_per_node: int, rounds: int, modes: str) -> int:
    """Plays `rounds` rounds of low latency ("l"), throughput ("t") or both; returns the writes of this rank's proxy."""
    kinds = {"l": _low_latency, "t": _throughput}

    def todo(number: int) -> list[Step]:
        return [kinds[mode](number) for mode in modes]

    buffer = make_buffer(group, todo(0), ranks_per_node, slack=6)
    try:
        for number in range(rounds):
            for step in todo(number):
                for _ in playing(buffer, step, ranks_per_node):
                    pass
        return int(buffer.stats()["proxy"]["writes"])
    finally:
        buffer.destroy()


@pytest.mark.timeout(200)
@pytest.mark.slow
@pytest.mark.parametrize("modes", ["l", "t"])
def test_rounds_1000_without_synchronising(crew: Crew, modes: str) -> None:
    """4 ranks as processes, 2 nodes of 2, tcp between them."""
    writes = crew.run(World(4, 2, "tcp"), _rounds, 2, 1000, modes, limit_s=190)
    assert min(writes) >= 2000, "each round sends at least a count to the other node"


@pytest.mark.timeout(100)
def test_rounds_60_of_both_modes_without_synchronising(crew: Crew) -> None:
    crew.run(World(4, 2, "tcp"), _rounds, 2, 60, "lt")


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("modes", ["l", "t", "lt"])
def test_rounds_500_in_random_delivery_order(modes: str) -> None:
    as_threads(World(4, 2, "loopback", shuffle_seed=17), _rounds, 2, 500, modes)
