"""Queues by hand, against a plain loop, and orders rebuilt."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from uccl_ep.tools.bench.scale.queues import fifo, in_sequence, most_parked


def ints(*values: int) -> npt.NDArray[np.int64]:
    return np.asarray(values, np.int64)


def times(*values: float) -> npt.NDArray[np.float64]:
    return np.asarray(values, np.float64)


def test_queues_serve_in_order_of_arrival() -> None:
    # Server 0: arrivals 0, 1 and 10, work 4 each: 4, 8, then idle until 10. Server 1 is on its own.
    ends = fifo(ints(0, 1, 0, 0), times(10, 3, 0, 1), times(4, 5, 4, 4))
    assert ends == pytest.approx([14, 8, 4, 8])


def test_queues_equal_arrivals_keep_their_order() -> None:
    assert fifo(ints(0, 0, 0), times(1, 1, 1), times(1, 2, 3)) == pytest.approx([2, 4, 7])


@pytest.mark.parametrize("seed", range(3))
def test_queues_equal_a_plain_loop(seed: int) -> None:
    generator = np.random.default_rng(seed)
    server = generator.integers(0, 7, 400)
    arrival, service = generator.random(400) * 50, generator.random(400)
    free, expected = np.zeros(7), np.zeros(400)
    for i in np.argsort(arrival, kind="stable"):
        free[server[i]] = max(free[server[i]], arrival[i]) + service[i]
        expected[i] = free[server[i]]
    assert fifo(server, arrival, service) == pytest.approx(expected, abs=1e-6)


def test_queues_sequence_waits_for_the_earliest_gap() -> None:
    # Stream 5: position 0 comes at 9, so 1 and 2 wait for it. Stream 6 is not held up.
    applied = in_sequence(ints(5, 6, 5, 5), ints(1, 0, 0, 2), times(1, 2, 9, 4))
    assert applied == pytest.approx([9, 2, 9, 9])


def test_queues_count_what_is_parked_and_how_far_ahead() -> None:
    # Of positions 0, 1, 2, 3 the order of arrival is 2, 3, 0, 1: two are parked; 3 comes when nothing is applied.
    assert most_parked(ints(0, 0, 0, 0), ints(0, 1, 2, 3), times(3, 4, 1, 2)) == (2, 3)
    # Gaps between positions say nothing: another stream of the source took them.
    assert most_parked(ints(0, 0, 1, 1), ints(0, 2, 1, 3), times(2, 1, 5, 6)) == (1, 1)
    assert most_parked(ints(0, 0), ints(0, 1), times(1, 2)) == (0, 0)


def test_queues_of_nothing() -> None:
    assert fifo(ints(), times(), times()).size == 0 and in_sequence(ints(), ints(), times()).size == 0
    assert most_parked(ints(), ints(), times()) == (0, 0)
