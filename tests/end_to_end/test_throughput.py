"""Throughput against the reference, ranks as threads: every format, cached and worst-case calls, over every network."""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.end_to_end.play import play
from tests.end_to_end.steps import THROUGHPUT_FORMATS, ThroughputStep
from tests.end_to_end.strategies import SLACK, examples, steps, throughput_steps, worlds
from tests.end_to_end.world import World, as_threads


@pytest.mark.timeout(120)  # dozens of groups of up to eight ranks
@examples(25)
@given(world=worlds(), todo=steps(throughput_steps()), slack=SLACK)
def test_throughput_agrees_with_the_reference(world: World, todo: list[ThroughputStep], slack: int) -> None:
    as_threads(world, play, todo, world.ranks_per_node, slack)


@pytest.mark.mostly_slow(quick=4)
@pytest.mark.parametrize("transport", ["loopback", "shared_memory", "tcp"])
@pytest.mark.parametrize(("ranks", "ranks_per_node"), [(3, 2), (5, 2), (4, 1), (7, 3)])
def test_throughput_on_uneven_nodes(ranks: int, ranks_per_node: int, transport: str) -> None:
    world = World(ranks, ranks_per_node, transport, shuffle_seed=7 if transport == "loopback" else 0)
    todo = [
        ThroughputStep(seed, format=f, worst=seed % 2 == 0, num_cached=1, num_bias=seed % 3, traffic="uniform")
        for seed, f in enumerate(THROUGHPUT_FORMATS)
    ]
    stats = as_threads(world, play, todo, ranks_per_node, 2)
    assert all(own["proxy"]["writes"] > 0 for own in stats), "rows between nodes go through the proxies"


@pytest.mark.parametrize("ranks_per_node", [0, 2])
def test_throughput_streams_wrap_many_times(ranks_per_node: int) -> None:
    """Rings of two chunks, hundreds of rows: every slot is used again and again while readers lag."""
    todo = [ThroughputStep(seed, max_tokens=300, hidden=64, traffic="uniform", num_cached=1) for seed in range(2)]
    as_threads(World(4, ranks_per_node, "loopback", shuffle_seed=5, max_in_flight=2), play, todo, ranks_per_node, 1)


@pytest.mark.parametrize("topk", [1, 31, 32])
def test_throughput_topk_at_its_limits(topk: int) -> None:
    todo = [ThroughputStep(seed, topk=topk, local_experts=14, worst=seed == 1) for seed in range(3)]
    as_threads(World(3, 1, "loopback", shuffle_seed=11), play, todo, 1)


@pytest.mark.slow
@pytest.mark.timeout(400)
@examples(250)
@given(world=worlds(), todo=steps(throughput_steps(), 6), slack=SLACK)
def test_throughput_agrees_with_the_reference_at_length(world: World, todo: list[ThroughputStep], slack: int) -> None:
    as_threads(world, play, todo, world.ranks_per_node, slack)
