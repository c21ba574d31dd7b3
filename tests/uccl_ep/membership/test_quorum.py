"""Who may go on: never two groups without a common rank, whatever either knows of deaths that have happened."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Collection

import numpy as np
import pytest

from tests.uccl_ep.membership.test_neighbours import sleeper
from uccl_ep._native import DEPARTED_SILENT, DEPARTED_VOTED_AGAINST
from uccl_ep.errors import NoQuorum
from uccl_ep.membership.neighbours import Neighbours
from uccl_ep.membership.quorum import Quorum


def knows(num_ranks: int, dead: Collection[int], rank: int = 0) -> Quorum:
    made = Quorum(rank, num_ranks)
    made.dead = set(dead)
    return made


def subsets(ranks: Collection[int]) -> list[tuple[int, ...]]:
    return [found for size in range(len(ranks) + 1) for found in itertools.combinations(sorted(ranks), size)]


@pytest.mark.parametrize("num_ranks", range(1, 7))
def test_quorum_is_never_two_groups(num_ranks: int) -> None:
    """Every split of the living in two, with every knowledge that either half can have of the deaths."""
    splits = 0
    for deaths in subsets(range(num_ranks)):
        living = sorted(set(range(num_ranks)) - set(deaths))
        ours = subsets(deaths)
        for here in subsets(living):
            reached = [knows(num_ranks, dead).reached(here) for dead in ours]
            there = set(living) - set(here)
            assert not (any(reached) and any(knows(num_ranks, dead).reached(there) for dead in ours)), (here, deaths)
            splits += any(reached)
    assert splits  # some group goes on


def test_quorum_is_all_that_live_when_all_deaths_are_known() -> None:
    for deaths in subsets(range(5))[:-1]:
        assert knows(5, deaths).reached(set(range(5)) - set(deaths))


def test_quorum_of_a_half_is_the_one_with_the_lowest_rank_that_lives() -> None:
    assert knows(4, ()).reached({0, 3}) and not knows(4, ()).reached({1, 2})
    assert knows(5, {0}).reached({1, 4}) and not knows(5, {0}).reached({2, 3})
    assert not knows(4, ()).reached({0}) and not knows(1, ()).reached(())


def test_quorum_is_counted_of_the_last_life_that_all_have_begun() -> None:
    """Ranks 0 to 2 have agreed, but rank 1 may have missed it, and go on with 3 and 4: not 0 and 2 by themselves."""
    made = knows(5, ())
    assert not made.reached({0, 2})
    made.settle(frozenset({0, 1, 2}))
    assert made.reached({0, 2})


def life(pid: int, departed: int = 0) -> Neighbours:
    """Of rank 0, of which rank 1 is a neighbour and rank 2 is none."""
    own = np.array([0, departed, 0], np.uint64)
    return Neighbours(own, {1: (pid, np.zeros(1, np.uint64))})


def test_quorum_counts_out_whose_process_has_ended() -> None:
    with sleeper() as child:
        made = knows(3, ())
        made.see(life(child.pid))
        made.look({1, 2}, {1, 2})
        assert made.lives(1) and not made.lives(2) and not made.dead, "a listener's refusal is no death"
        child.kill()
        child.wait()
        made.look({1, 2}, ())
        assert made.dead == {1} and not made.lives(1)


def test_quorum_counts_out_who_has_left_and_whose_listener_refuses() -> None:
    with sleeper() as child:
        made = knows(3, ())
        made.see(life(child.pid, departed=2))
        made.look({1}, ())
        assert not made.dead, "it may have ended this life to begin the next"
        made.look({1}, {1})
        assert made.dead == {1}


@pytest.mark.parametrize("silent", [0, DEPARTED_SILENT])
def test_quorum_counts_who_has_voted_against_this_rank_before_it_ended(silent: int) -> None:
    """What it voted for may be a group that others go on in."""
    with sleeper() as child:
        made = knows(3, ())
        made.see(life(child.pid, departed=DEPARTED_VOTED_AGAINST | silent))
        made.see(life(child.pid))  # a later life, of which only the start was tried
        child.kill()
        child.wait()
        made.look({1}, {1})
        assert not made.dead
        made.settle(frozenset({0, 1}))
        made.look({1}, {1})
        assert made.dead == {1}, "all have begun a life since"


def test_quorum_takes_others_word_for_deaths_but_not_for_its_own() -> None:
    made = knows(4, (), rank=3)
    made.hear({0, 3})
    assert made.dead == {0}


def refusal(made: Quorum, group: set[int], unwilling: set[int]) -> NoQuorum:
    with pytest.raises(NoQuorum) as caught:
        made.refuse(group, unwilling)
    return caught.value


def test_quorum_refusal_says_who_is_missing_how_many_are_needed_and_what_to_do() -> None:
    with sleeper() as child:
        made = knows(4, {3}, rank=2)
        made.see(life(child.pid))
        error = refusal(made, {2}, {2})
        for words in (
            "rank 2: rank(s) 0, 1 cannot be reached, and may go on by themselves (the processes of 1 live on this host",
            "Left are 2 of the last agreed 0, 1, 2, 3; needed are 2 of 0, 1, 2: if you know",
            "recover(allow_minority=True)",
            "recover(group)",
        ):
            assert words in str(error), error
        assert (error.missing, error.needed) == ((0, 1), 2)
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), again.missing, again.needed) == (str(error), (0, 1), 2)
    text = str(refusal(knows(4, (), rank=2), {2, 3}, {3}))
    assert "needed are 3 of 0, 1, 2, 3, or 2 of them with rank 0: rank(s) 3 did not ask for allow_minority=True" in text
