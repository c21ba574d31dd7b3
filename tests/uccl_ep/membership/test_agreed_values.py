"""Agreed values of ranks whose messages a test delivers: what comes early, late, of another life, or from a suspect."""

from __future__ import annotations

import queue
import random
import threading
from typing import Any

import pytest

from tests.uccl_ep.proxies import eventually
from uccl_ep.errors import PeerLost
from uccl_ep.membership.agreed_values import MAX_TEXT, AgreedValues, Value
from uccl_ep.membership.agreement import Agreement
from uccl_ep.membership.agreement_view import DECIDED, PROPOSING, View

RANKS = 3


class Ranks:
    """AgreedValues of all ranks, whose messages one thread delivers; `cut` are pairs between which nothing arrives."""

    def __init__(self) -> None:
        self.cut: set[tuple[int, int]] = set()
        self.until, self.deaf = 1 << 30, set[int]()  # words of rank 2 before it ends; and who hears none of the last
        self.said: dict[int, dict[int, Value]] = {}
        self.lost: dict[int, PeerLost] = {}
        self.made = [
            AgreedValues("k", "a phase", r, RANKS, lambda to, said, r=r: self._words.put((r, to, said)))
            for r in range(RANKS)
        ]
        for one in self.made:
            one.begin(5)
        self._words: queue.SimpleQueue[tuple[int, int, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._deliver, daemon=True).start()

    def _deliver(self) -> None:
        while True:
            rank, to, said = self._words.get()
            if rank == 2:
                self.until -= 1
                if self.until == 0:
                    for other in (0, 1):
                        self.made[other].lose(2)
                if self.until <= 0 or (self.until < 3 and to in self.deaf):
                    continue
            if (rank, to) not in self.cut:
                self.made[to].hear(rank, said)

    def agree(
        self,
        masked: dict[int, set[int]],
        deadline_s: float = 20.0,
        values: dict[int, Value] | None = None,
        number: int | None = None,
    ) -> dict[int, frozenset[int]]:
        found: dict[int, frozenset[int]] = {}

        def run(rank: int) -> None:
            value = 0 if values is None else values[rank]
            try:
                self.said[rank] = self.made[rank].agree(masked[rank], deadline_s, value, number)
                found[rank] = frozenset(range(RANKS)) - self.said[rank].keys()
            except PeerLost as lost:
                self.lost[rank] = lost

        threads = [threading.Thread(target=run, args=(rank,)) for rank in masked]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found


def test_agreed_values_are_the_union_each_time_anew() -> None:
    ranks = Ranks()
    assert ranks.agree({0: set(), 1: set(), 2: set()}) == dict.fromkeys(range(3), frozenset())
    assert ranks.agree({0: {2}, 1: set()}) == dict.fromkeys((0, 1), frozenset({2}))
    ranks.made[2].number = ranks.made[0].number  # it has come back
    assert ranks.agree({0: set(), 1: set(), 2: set()}) == dict.fromkeys(range(3), frozenset())


def test_agreed_values_of_a_rank_that_is_left_out_keep_little() -> None:
    ranks = Ranks()
    for _ in range(12):
        assert ranks.agree({0: {2}, 1: set()}) == dict.fromkeys((0, 1), frozenset({2}))
    assert len(ranks.made[2]._early) <= 2 * 4  # of each other rank, about the newest agreements
    ranks.made[2].number = ranks.made[0].number  # it has come back
    assert ranks.agree({0: set(), 1: set(), 2: set()}) == dict.fromkeys(range(3), frozenset())


def test_agreed_values_give_up_who_does_not_come() -> None:
    ranks = Ranks()
    assert ranks.agree({0: set(), 2: set()}, deadline_s=0.2) == dict.fromkeys((0, 2), frozenset({1}))


def test_agreed_values_of_another_life_or_of_no_correct_rank_count_for_nothing() -> None:
    ranks = Ranks()
    ranks.made[1].begin(6)
    assert ranks.agree({0: set(), 1: set()}, deadline_s=0.2) == {0: frozenset({1, 2}), 1: frozenset({0, 2})}
    view = View(1, PROPOSING, frozenset(), frozenset(), 1, 0, False, False, ()).as_message()
    correct: dict[str, Any] = {**view, "before": [], "life": 6, "at": 2, "say": [[0, "why"]]}
    for wrong in ({"life": -1}, {"at": None}, {"say": [[RANKS, 0]]}, {"say": [[0, "x" * (MAX_TEXT + 1)]]}, {"say": 1}):
        with pytest.raises((ValueError, TypeError, KeyError)):
            ranks.made[1].hear(0, correct | wrong)
    assert ranks.made[1].heard(2) == {}
    ranks.made[1].hear(0, correct)
    assert ranks.made[1].heard(2) == {0: "why"}


def test_agreed_values_are_those_of_all_who_are_left() -> None:
    ranks = Ranks()
    values: dict[int, Value] = {0: "no", 1: 7, 2: ""}
    assert all(one.take_numbers(2) == range(1, 3) for one in ranks.made)
    assert ranks.agree({0: set(), 1: set(), 2: set()}, values=values, number=1) == dict.fromkeys(range(3), frozenset())
    assert ranks.said == dict.fromkeys(range(3), values)
    assert all(one.is_settled(1, range(RANKS)) and not one.is_settled(2, range(RANKS)) for one in ranks.made)
    ranks.agree({0: {1}, 2: set()}, values=values, number=2)
    assert ranks.said[0] == ranks.said[2] == {0: "no", 2: ""}
    assert ranks.made[0].is_settled(2, (0, 2)) and not ranks.made[0].is_settled(2, (1,))
    ranks.made[0].lose(1)
    assert ranks.made[0].is_settled(2, (0, 1))


@pytest.mark.parametrize("seed", range(20))
def test_agreed_values_are_alike_whoever_ends(seed: int) -> None:
    """A rank's last words reach only some: the others count its value, all of them or none."""
    ranks, draw = Ranks(), random.Random(seed)
    ranks.until = draw.randint(1, 9)
    ranks.deaf = {draw.randrange(2)} if seed % 2 else set()
    values: dict[int, Value] = {0: 1, 1: 2, 2: 99}
    ranks.agree({0: set(), 1: set(), 2: set()}, values=values)
    assert ranks.said[0] == ranks.said[1] in ({0: 1, 1: 2}, values)


def test_agreed_values_tell_the_rank_that_is_left_out() -> None:
    ranks = Ranks()
    ranks.agree({0: {2}, 1: set(), 2: set()})
    assert isinstance(ranks.lost.get(2), PeerLost) and ranks.lost[2].phase == "a phase" and set(ranks.lost) == {2}


def test_agreed_values_take_no_decision_over_from_a_suspect() -> None:
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


def test_agreed_values_a_rank_that_is_left_out_answers_nothing() -> None:
    """Who leaves it out answers whatever it says, so the two would never come to an end."""
    said: list[Any] = []
    one = Agreement(2, RANKS, None, lambda to, message: said.append((to, message)))
    for number in (1, 2):
        one.hear(0, 1, View(number, DECIDED, frozenset({2}), frozenset(), 0, 0, False, False, ()))
    assert one.excluded_by == 0 and said == []
