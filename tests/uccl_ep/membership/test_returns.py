"""Returns: a pair is together when both are ready for each other's newest offer, and for nothing older."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from uccl_ep.membership.returns import Returns

HERE, THERE = frozenset({0}), frozenset({1})


class Pair:
    """Two ranks whose messages a test delivers."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int, dict[str, Any]]] = []
        self.ranks = [
            Returns(me, 2, threading.Condition(), lambda to, said, me=me: self.sent.append((me, to, said)))
            for me in range(2)
        ]
        for one in self.ranks:
            one.begin(7)

    def deliver(self, most: int = 1 << 30) -> None:
        while self.sent and most:
            sender, to, said = self.sent.pop(0)
            self.ranks[to].hear(sender, said)
            most -= 1

    def together(self) -> list[bool]:
        return [self.ranks[0].together(1), self.ranks[1].together(0)]


def test_returns_need_both_offers_and_both_ready() -> None:
    pair = Pair()
    a, b = pair.ranks
    a.offer(1, (3,), HERE)
    assert not a.is_heard(1)
    pair.deliver()
    assert a.is_heard(1) and b.heard[0].counts == (3,) and pair.together() == [False, False]
    b.offer(0, (3,), THERE)
    pair.deliver()
    b.say_ready(0, b.heard[0])
    pair.deliver()
    assert b.is_ready_for(0) and not a.is_ready_for(1) and pair.together() == [False, False]
    a.say_ready(1, a.heard[1])
    assert pair.together() == [True, False]
    pair.deliver()
    assert pair.together() == [True, True]


def test_returns_a_newer_offer_makes_the_older_answer_worthless() -> None:
    pair = Pair()
    a, b = pair.ranks
    a.offer(1, (3,), HERE)
    b.offer(0, (2,), THERE)
    pair.deliver()
    a.say_ready(1, a.heard[1])
    b.say_ready(0, b.heard[0])
    b.offer(0, (3,), THERE)  # before it hears of that
    pair.deliver()
    assert pair.together() == [False, False] and not a.is_ready_for(1)
    for one, other in ((a, 1), (b, 0)):
        one.say_ready(other, one.heard[other])
    pair.deliver()
    assert pair.together() == [True, True]


def test_returns_tell_nothing_twice_and_more_company_again() -> None:
    pair = Pair()
    a = pair.ranks[0]
    for company in (HERE | THERE, HERE | THERE, HERE):
        a.offer(1, (3,), company)
        assert len(pair.sent) == 1
    a.offer(1, (3,), HERE | THERE | {2})
    assert len(pair.sent) == 2
    a.offer(1, (4,), HERE)
    assert len(pair.sent) == 3


def test_returns_that_were_given_up_are_not_answered_later() -> None:
    pair = Pair()
    a, b = pair.ranks
    a.offer(1, (3,), HERE)
    pair.deliver()
    a.forget(1)
    b.offer(0, (3,), THERE)
    pair.deliver()
    b.say_ready(0, b.heard[0])
    pair.deliver()
    a.offer(1, (9,), HERE)
    a.say_ready(1, a.heard[1])
    pair.deliver()
    assert pair.together() == [False, False]


def test_returns_of_another_life_or_of_no_correct_rank_count_for_nothing() -> None:
    pair = Pair()
    a, b = pair.ranks
    a.offer(1, (3,), HERE)
    b.begin(8)
    pair.deliver()
    assert not b.heard and not a.is_heard(1)
    good = {"k": "returns", "g": 0, "life": 8, "i": 1, "counts": [1], "with": [0]}
    for wrong in ({"counts": [-1]}, {"counts": [1] * 33}, {"with": [2]}, {"i": "1"}, {"with": 1}, {"life": None}):
        with pytest.raises((ValueError, TypeError, KeyError)):
            b.hear(0, good | wrong)
    assert not b.heard
    b.hear(0, good)
    assert b.heard[0].counts == (1,)


def test_returns_wait_for_news() -> None:
    pair = Pair()
    a, b = pair.ranks
    assert not a.wait(a.news, time.monotonic() + 0.01)
    news = a.news
    b.offer(0, (1,), THERE)
    timer = threading.Timer(0.02, pair.deliver)
    timer.start()
    assert a.wait(news, time.monotonic() + 20)
    timer.join()
    assert a.wait(news, time.monotonic())  # what was heard before the wait counts, too
