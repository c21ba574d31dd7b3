"""Whom ranks say they wait for: who is given time to say it, and what no rank says."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from uccl_ep.membership.wait_reports import WaitReport, WaitReports


class One:
    """Rank 0 of three: what it sends is kept, and nobody is over until the test says so."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, dict[str, Any]]] = []
        self.ended: set[int | None] = set()
        changed = threading.Condition()
        self.words = WaitReports(0, 3, changed, lambda rank, said: self.sent.append((rank, said)), self.over)

    def over(self, rank: int | None) -> bool:
        return rank in self.ended

    def hears(self, rank: int, who: int | None = None, current: bool = True) -> None:
        """A wait report about rank `who`; without one, that `rank` is alive."""
        said = {"k": "alive"} if who is None else {"k": "waits", "who": who + 1, "why": "dispatch"}
        self.words.hear(rank, 4, said, current)


def follow(one: One, waited_for: int, grace_s: float, patience_s: float) -> tuple[dict[int, int], float]:
    """(whom each waits for, after how many seconds)."""
    began = time.monotonic()
    said = one.words.follow(waited_for, grace_s, patience_s)
    return {rank: word.peer for rank, word in said.items()}, time.monotonic() - began


def test_wait_reports_are_told_to_all_others() -> None:
    one = One()
    one.words.report_wait(4, 2, "x" * 5000)
    assert one.sent == [(rank, {"k": "waits", "g": 4, "who": 3, "why": "x" * 2000}) for rank in (1, 2)]


def test_wait_reports_are_answered_whomever_they_are_about() -> None:
    one = One()
    one.hears(2, 0, current=False)
    assert one.sent == []
    one.hears(1, 2)
    one.hears(1, -1)
    one.hears(2, 0)
    assert one.sent == [(rank, {"k": "alive", "g": 4}) for rank in (1, 1, 2)]
    assert one.words.wait(1, 0.0) == {1: WaitReport(2, "dispatch"), 2: WaitReport(0, "dispatch")}  # the first of each


def test_wait_reports_of_the_error_by_which_a_rank_leaves() -> None:
    one = One()
    one.words.report_error(4, "ValueError: " + "x" * 5000)
    said = {"k": "leaves", "g": 4, "why": "ValueError: " + "x" * 1988}
    assert one.sent == [(rank, said) for rank in (1, 2)]
    one.words.hear(2, 4, {"k": "leaves", "why": "KeyError: 'mine'"}, False)
    assert (one.words.error_of(2), one.words.error_of(1)) == ("KeyError: 'mine'", "")
    assert len(one.sent) == 2 and one.words.wait(None, 0.0) == {}  # it is no wait, and nobody answers it
    for wrong in (7, "x" * 2001):
        with pytest.raises(ValueError, match="no reason"):
            one.words.hear(1, 4, {"k": "leaves", "why": wrong}, True)


def test_wait_reports_of_another_group_are_forgotten() -> None:
    one = One()
    assert one.words.silent() == {1, 2}
    one.hears(1, 2)
    assert one.words.silent() == {2}
    one.hears(2)
    assert one.words.silent() == set()
    one.words.forget()
    assert one.words.silent() == {1, 2}
    assert one.words.wait(None, 0.0) == {}
    assert follow(one, 2, 0.0, 60.0)[1] < 30.0


def test_wait_reports_follow_gives_a_silent_rank_only_the_grace() -> None:
    one = One()
    said, seconds = follow(one, 1, 0.05, 60.0)
    assert said == {} and 0.05 <= seconds < 30.0


def test_wait_reports_follow_waits_for_the_word_of_a_rank_that_is_alive_and_a_little_for_the_next_one() -> None:
    one = One()
    one.hears(1)
    later = [threading.Timer(0.3, one.hears, (1, 2)), threading.Timer(0.4, one.hears, (2, 0))]
    for timer in later:
        timer.start()
    said, seconds = follow(one, 1, 5.0, 60.0)
    assert said == {1: 2, 2: 0} and 5.0 <= seconds < 30.0


def test_wait_reports_follow_has_an_end_when_the_rank_waited_for_never_speaks_or_ends() -> None:
    one = One()
    one.hears(1)
    said, seconds = follow(one, 1, 0.05, 0.3)
    assert said == {} and 0.3 <= seconds < 30.0
    one.ended = {1}
    assert follow(one, 1, 0.05, 60.0)[1] < 30.0
    one.ended = {None}
    assert follow(one, 2, 60.0, 60.0)[1] < 30.0


@pytest.mark.parametrize("who, why", [(w, "x") for w in (-1, 4, 2.0, "2", None)] + [(2, 7), (2, None), (2, "x" * 2001)])
def test_wait_reports_that_no_rank_says_are_refused(who: object, why: object) -> None:
    one = One()
    with pytest.raises(ValueError):
        one.words.hear(1, 4, {"k": "waits", "who": who, "why": why}, True)
    with pytest.raises(KeyError):
        one.words.hear(1, 4, {"k": "waits", "who": 1}, True)
    assert one.words.wait(1, 0.0) == {}
