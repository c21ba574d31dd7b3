"""Agreed masks of ranks whose messages a test delivers: what comes early, late, of another life, or from a suspect."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.uccl_ep.proxies import eventually
from uccl_ep.membership.agreed_masks import AgreedMasks
from uccl_ep.membership.agreement import Agreement
from uccl_ep.membership.agreement_view import DECIDED, PROPOSING, View

RANKS = 3


class Ranks:
    """AgreedMasks of all ranks; `cut` are pairs between which nothing arrives."""

    def __init__(self) -> None:
        self.cut: set[tuple[int, int]] = set()
        self.made = [AgreedMasks(r, RANKS, lambda to, said, r=r: self._send(r, to, said)) for r in range(RANKS)]
        for one in self.made:
            one.begin(5)

    def _send(self, rank: int, to: int, said: Any) -> None:
        if (rank, to) not in self.cut:
            self.made[to].hear(rank, said)

    def agree(self, masked: dict[int, set[int]], deadline_s: float = 20.0) -> dict[int, frozenset[int]]:
        found: dict[int, frozenset[int]] = {}

        def run(rank: int) -> None:
            found[rank] = self.made[rank].agree(masked[rank], deadline_s)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in masked]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found


def test_agreed_masks_are_the_union_each_time_anew() -> None:
    ranks = Ranks()
    assert ranks.agree({0: set(), 1: set(), 2: set()}) == dict.fromkeys(range(3), frozenset())
    assert ranks.agree({0: {2}, 1: set()}) == dict.fromkeys((0, 1), frozenset({2}))
    ranks.made[2].number = ranks.made[0].number  # it has come back
    assert ranks.agree({0: set(), 1: set(), 2: set()}) == dict.fromkeys(range(3), frozenset())


def test_agreed_masks_of_a_rank_that_is_left_out_keep_little() -> None:
    ranks = Ranks()
    for _ in range(12):
        assert ranks.agree({0: {2}, 1: set()}) == dict.fromkeys((0, 1), frozenset({2}))
    assert len(ranks.made[2]._early) <= 2 * 4  # of each other rank, about the newest agreements
    ranks.made[2].number = ranks.made[0].number  # it has come back
    assert ranks.agree({0: set(), 1: set(), 2: set()}) == dict.fromkeys(range(3), frozenset())


def test_agreed_masks_give_up_who_does_not_come() -> None:
    ranks = Ranks()
    assert ranks.agree({0: set(), 2: set()}, deadline_s=0.2) == dict.fromkeys((0, 2), frozenset({1}))


def test_agreed_masks_of_another_life_or_of_no_correct_rank_count_for_nothing() -> None:
    ranks = Ranks()
    ranks.made[1].begin(6)
    assert ranks.agree({0: set(), 1: set()}, deadline_s=0.2) == {0: frozenset({1, 2}), 1: frozenset({0, 2})}
    for wrong in ({"life": -1}, {"at": None}, {}):
        with pytest.raises((ValueError, TypeError, KeyError)):
            ranks.made[1].hear(0, {"life": 6, "at": 2} | wrong)


def test_agreed_masks_take_no_decision_over_from_a_suspect() -> None:
    """Others may have confirmed its absence since, and nothing else would tell the two groups apart."""
    said: list[tuple[int, Any]] = []
    one = Agreement(0, RANKS, None, lambda to, message: said.append((to, message)))
    one.suspect({1})
    thread = threading.Thread(target=one.agree, args=((), 20.0))
    thread.start()
    assert eventually(lambda: said)

    def view(phase: int, suspects: set[int]) -> View:
        return View(1, phase, frozenset(suspects), frozenset(), 1, 0, False, False, ())

    one.hear(1, 1, view(DECIDED, set()))
    one.hear(2, 1, view(PROPOSING, {1}))
    assert one.generation == 0
    one.hear(2, 1, View(2, DECIDED, frozenset({1}), frozenset(), 0, 0, False, False, ()))
    thread.join()
    assert one.members == {0, 2}
