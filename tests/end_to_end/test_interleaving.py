"""Two batches in flight on one Buffer, both modes in one Buffer, and many ranks at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.end_to_end.play import make_buffer, play, play_interleaved, playing
from tests.end_to_end.steps import LowLatencyStep, Step, ThroughputStep
from tests.end_to_end.strategies import SEEDS, examples, low_latency_steps, throughput_steps, worlds
from tests.end_to_end.world import World, as_threads
from uccl_ep import ThreadGroup

# Batches in flight at once have one shape; zero-copy rows have one owner.
_PAIRS = st.tuples(low_latency_steps(), SEEDS).map(
    lambda drawn: (
        replace(drawn[0], send="hook", combine="plain" if drawn[0].combine == "zero_copy" else drawn[0].combine),
        replace(drawn[0], send="hook", combine="plain", seed=drawn[1]),
    )
)


@pytest.mark.timeout(100)
@examples(10)
@given(world=worlds(max_ranks=5), pair=_PAIRS, rounds=st.integers(1, 4), seed=SEEDS)
def test_interleaved_low_latency_batches(
    world: World, pair: tuple[LowLatencyStep, LowLatencyStep], rounds: int, seed: int
) -> None:
    pairs = [tuple(replace(step, seed=step.seed + r) for step in pair) for r in range(rounds)]
    as_threads(world, play_interleaved, pairs, world.ranks_per_node, seed)


@pytest.mark.timeout(100)
@examples(10)
@given(
    world=worlds(max_ranks=5),
    pair=st.tuples(throughput_steps(), st.one_of(throughput_steps(), low_latency_steps())),
    seed=SEEDS,
)
def test_interleaved_batches_of_any_kind(world: World, pair: tuple[Step, Step], seed: int) -> None:
    as_threads(world, play_interleaved, [pair, pair], world.ranks_per_node, seed)


def _third_dispatch(group: ThreadGroup, ranks_per_node: int, sent: threading.Event) -> None:
    """Rank 0 is three dispatches ahead of a reader that still has the first one to take."""
    rounds = [LowLatencyStep(number, send="hook", traffic="uniform") for number in range(3)]
    buffer = make_buffer(group, rounds, ranks_per_node)
    try:
        first, second, third = (playing(buffer, step, ranks_per_node or None) for step in rounds)
        assert [next(first), next(second)] == ["send", "send"]
        if group.rank() == 0:
            assert [next(first), next(second), next(third)] == ["receive", "receive", "send"]
            sent.set()
        else:
            assert not sent.wait(0.3), "rank 0 has overwritten rows that this rank has not read"
            assert [next(first), next(second), next(third)] == ["receive", "receive", "send"]
        assert next(third) == "receive"
    finally:
        buffer.destroy()


@pytest.mark.parametrize("ranks_per_node", [0, 1])
def test_interleaved_third_dispatch_waits_for_the_slowest_reader(ranks_per_node: int) -> None:
    as_threads(World(3, ranks_per_node, "loopback"), _third_dispatch, ranks_per_node, threading.Event())


def _alternating(rounds: int, sizes: Sequence[int]) -> list[Step]:
    todo: list[Step] = []
    for r in range(rounds):
        hidden = sizes[r % len(sizes)]
        send, form = ("sync", "async", "hook")[r % 3], ("bf16", "fp8")[r % 2]
        todo.append(
            LowLatencyStep(r, hidden=hidden, send=send, format=form, combine="zero_copy" if r % 4 == 3 else "plain")
        )
        todo.append(ThroughputStep(r, hidden=hidden, worst=r % 3 == 1, use_async=r % 2 == 1, num_cached=r % 2))
    return todo


@pytest.mark.parametrize("world", [World(4, 2, "tcp"), World(3, 1, "loopback", shuffle_seed=9), World(4, 0)])
def test_modes_alternate_in_one_buffer(world: World) -> None:
    """Also with other sizes from call to call: low latency then lays its rows out anew, behind a barrier."""
    as_threads(world, play, _alternating(8, [256, 128]), world.ranks_per_node, 2)


def test_24_ranks_as_threads() -> None:
    world = World(24, 8, "loopback", shuffle_seed=1, host_blocks=1)
    todo: list[Step] = [
        LowLatencyStep(1, max_tokens=4, hidden=128, format="fp8", traffic="uniform"),
        ThroughputStep(2, max_tokens=6, hidden=64, traffic="mixed", num_sms=2),
    ]
    stats = as_threads(world, play, todo, 8, 2)
    assert len(stats) == 24 and all(own["proxy"]["writes"] > 0 for own in stats)
