"""Ranks of one host: a process lives, has ended, or left its number to another; and votes reach whom they leave out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from uccl_ep.membership.neighbours import Neighbours


@contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        assert child.stdin is not None
        child.stdin.close()


def test_neighbours_end() -> None:
    with sleeper() as child:
        made = Neighbours(np.zeros(3, np.uint64), {2: (child.pid, np.zeros(1, np.uint64))})
        assert 2 in made and 1 not in made
        assert not made.has_ended(2)
        child.kill()
        child.wait()
        assert made.has_ended(2)


def test_neighbours_number_that_another_process_has_now() -> None:
    made = Neighbours(np.zeros(2, np.uint64), {1: (os.getpid(), np.zeros(1, np.uint64))})
    assert not made.has_ended(1)
    made._starts[1] -= 1
    assert made.has_ended(1)


def test_neighbours_see_each_others_votes_and_goodbyes() -> None:
    words = [np.zeros(3, np.uint64) for _ in range(3)]
    ranks = [
        Neighbours(words[me], {you: (os.getpid(), words[you][me : me + 1]) for you in range(3) if you != me})
        for me in range(3)
    ]
    ranks[0].vote_against({2, 7})
    assert ranks[2].has_voted_against(0) and not ranks[1].has_voted_against(0) and not ranks[2].has_voted_against(1)
    assert not ranks[2].has_left(0)
    words[1][0] = 2
    assert ranks[1].has_left(0) and not ranks[1].has_voted_against(0)
