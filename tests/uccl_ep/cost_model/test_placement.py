"""Placements of experts: what is refused, copies that take turns, and a balance counted by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.uccl_ep.ranks import assert_refused
from uccl_ep.cost_model.placement import balanced, checked, linear, rows_of_experts, to_slots
from uccl_ep.cost_model.routing import make_routing


def test_placement_linear_begins_again() -> None:
    assert linear(4, 6).tolist() == [0, 1, 2, 3, 0, 1]


@pytest.mark.parametrize(
    ("slots", "words"),
    [
        ([0, 1, 2], "a multiple of the 2 ranks"),
        ([], "a multiple of the 2 ranks"),
        ([[0, 1], [2, 0]], "a multiple of the 2 ranks"),
        ([0, 1, 2, 3], "experts 0 to 2, or -1"),
        ([0, 1, 2, -2], "experts 0 to 2, or -1"),
        ([0, 1, 1, -1], "a slot for each of the 3 experts"),
    ],
)
def test_placement_refuses(slots: Any, words: str) -> None:
    assert_refused(lambda: checked("after", slots, 2, 3), ["after", words])
    assert checked("after", [2, -1, 1, 0], 2, 3).tolist() == [2, -1, 1, 0]


def test_placement_gives_copies_to_who_has_most_rows() -> None:
    """Expert 0 has 60 rows: two copies of 30, then three of 20; then expert 1, whose 30 are the most."""
    found = balanced([60, 30, 20, 10], 4, 8).reshape(4, 2)
    copies = np.bincount(found.reshape(-1), minlength=4).tolist()
    assert copies == [4, 2, 1, 1]  # 60 / 3 = 20 is beaten by 30, then 20 is the first of those with 20
    assert all(len(set(own)) == 2 for own in found.tolist())  # no rank has two of one expert
    loads = [sum([60, 30, 20, 10][e] / copies[e] for e in own) for own in found.tolist()]
    assert sorted(loads) == [25.0, 30.0, 30.0, 35.0]


@pytest.mark.parametrize("seed", range(8))
def test_placement_balanced_has_all_and_is_no_worse(seed: int) -> None:
    ranks, experts, slots = 8, 32, 48
    routing = make_routing("skewed", ranks, 64, 4, experts, seed)
    load = rows_of_experts(routing, experts)
    found = checked("after", balanced(load, ranks, slots), ranks, experts)
    worst = []
    for placed in (linear(experts, slots), found):
        rows = np.bincount(np.concatenate([s.reshape(-1) for s in to_slots(routing, placed, experts)]), minlength=slots)
        worst.append(rows.reshape(ranks, -1).sum(axis=1).max())
    assert worst[1] <= min(worst[0], 1.3 * load.sum() / ranks)


@pytest.mark.parametrize("slots", [3, 5, 16])
def test_placement_balanced_refuses_slots_that_cannot_be(slots: int) -> None:
    assert_refused(lambda: balanced([1, 2, 3], 4, slots), ["slots", "a multiple of the 4 ranks, 3 to 12"])


def test_placement_copies_take_turns() -> None:
    placed = np.asarray([0, 1, -1, 0, 2, 0])  # copies of expert 0 in slots 0, 3, 5
    routing = [np.asarray([[0, 1], [0, -1], [2, 0], [0, 7]]), np.asarray([[0, 2]])]
    found = to_slots(routing, placed, 3)
    assert [one.tolist() for one in found] == [[[0, 1], [5, -1], [4, 5], [0, -1]], [[0, 4]]]  # places 0, 2, 5, 6
    assert rows_of_experts(routing, 3).tolist() == [5, 1, 2]
