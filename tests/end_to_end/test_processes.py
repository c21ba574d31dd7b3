"""Both modes against the reference with ranks as processes of a gloo group, the proxy in threads or in processes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.end_to_end.play import play, play_interleaved
from tests.end_to_end.steps import LowLatencyStep, Step, ThroughputStep
from tests.end_to_end.strategies import SEEDS, SLACK, examples, low_latency_steps, steps, throughput_steps, worlds
from tests.end_to_end.world import Crew, World, as_threads

_NETWORKS = ("shared_memory", "tcp")
_ANY = st.one_of(low_latency_steps(), throughput_steps())


@pytest.mark.timeout(150)  # starting eight processes takes seconds of its own
@examples(12)
@given(world=worlds(_NETWORKS), todo=steps(_ANY), slack=SLACK)
def test_processes_agree_with_the_reference(crew: Crew, world: World, todo: list[Step], slack: int) -> None:
    crew.run(world, play, todo, world.ranks_per_node, slack)


@pytest.mark.timeout(150)
@examples(4)
@given(world=worlds(_NETWORKS, proxies=["process"], max_ranks=4), todo=steps(_ANY), slack=SLACK)
def test_processes_with_proxy_processes(crew: Crew, world: World, todo: list[Step], slack: int) -> None:
    crew.run(world, play, todo, world.ranks_per_node, slack)


@pytest.mark.timeout(100)
@examples(4)
@given(world=worlds(_NETWORKS, max_ranks=5), pair=st.tuples(_ANY, throughput_steps()), seed=SEEDS)
def test_processes_with_two_batches_in_flight(crew: Crew, world: World, pair: tuple[Step, Step], seed: int) -> None:
    crew.run(world, play_interleaved, [pair, pair], world.ranks_per_node, seed)


@pytest.mark.timeout(100)
@pytest.mark.parametrize("transport", _NETWORKS)
def test_processes_threads_with_proxy_processes(transport: str) -> None:
    todo: list[Step] = [LowLatencyStep(1, format="fp8", send="hook"), ThroughputStep(2, num_cached=1)]
    as_threads(World(3, 2, transport, proxy="process"), play, todo, 2)


@pytest.mark.slow
@pytest.mark.timeout(300)
@examples(60)
@given(world=worlds(_NETWORKS, proxies=["thread", "thread", "process"]), todo=steps(_ANY, 6), slack=SLACK)
def test_processes_agree_with_the_reference_at_length(crew: Crew, world: World, todo: list[Step], slack: int) -> None:
    crew.run(world, play, todo, world.ranks_per_node, slack)
