"""Low latency against the reference, ranks as threads: every format, ending and combine, over every network."""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.end_to_end.play import play
from tests.end_to_end.steps import LowLatencyStep
from tests.end_to_end.strategies import examples, low_latency_steps, steps, worlds
from tests.end_to_end.world import World, as_threads


@pytest.mark.timeout(120)  # dozens of groups of up to eight ranks
@examples(25)
@given(world=worlds(), todo=steps(low_latency_steps()))
def test_low_latency_agrees_with_the_reference(world: World, todo: list[LowLatencyStep]) -> None:
    as_threads(world, play, todo, world.ranks_per_node)


@pytest.mark.mostly_slow(quick=4)
@pytest.mark.parametrize("transport", ["loopback", "shared_memory", "tcp"])
@pytest.mark.parametrize(("ranks", "ranks_per_node"), [(3, 2), (5, 2), (4, 1), (2, 1)])
def test_low_latency_on_uneven_nodes(ranks: int, ranks_per_node: int, transport: str) -> None:
    world = World(ranks, ranks_per_node, transport, shuffle_seed=7 if transport == "loopback" else 0)
    formats = ["bf16", "fp8", "fp8_round_scale", "fp8_ue8m0"]
    todo = [LowLatencyStep(seed, hidden=640, format=f, traffic="uniform") for seed, f in enumerate(formats)]
    stats = as_threads(world, play, todo, ranks_per_node)
    assert all(own["proxy"]["writes"] > 0 for own in stats), "rows between nodes go through the proxies"


@pytest.mark.parametrize("masked", [(1,), (0, 3)])
def test_low_latency_leaves_masked_ranks_out(masked: tuple[int, ...]) -> None:
    todo = [LowLatencyStep(seed, traffic="uniform", masked=masked if seed != 1 else ()) for seed in range(4)]
    as_threads(World(4), play, todo, 0)


@pytest.mark.parametrize("masked", [(1,), (0, 3)])
def test_low_latency_goes_on_without_masked_ranks_of_other_nodes(masked: tuple[int, ...]) -> None:
    todo = [LowLatencyStep(seed, traffic="uniform", masked=() if seed < 2 else masked) for seed in range(5)]
    as_threads(World(4, 1, "loopback", shuffle_seed=3), play, todo, 1)


@pytest.mark.parametrize("topk", [1, 31, 32])
def test_low_latency_topk_beyond_the_number_of_experts(topk: int) -> None:
    todo = [LowLatencyStep(seed, topk=topk, local_experts=1, max_tokens=9) for seed in range(3)]
    as_threads(World(3, 1, "loopback", shuffle_seed=11), play, todo, 1)


@pytest.mark.slow
@pytest.mark.timeout(400)
@examples(250)
@given(world=worlds(), todo=steps(low_latency_steps(), 6))
def test_low_latency_agrees_with_the_reference_at_length(world: World, todo: list[LowLatencyStep]) -> None:
    as_threads(world, play, todo, world.ranks_per_node)
