"""Agreement among survivors: one set for all that return, nobody who was dead before, everybody who lived through."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.uccl_ep.proxies import eventually
from uccl_ep.errors import InvalidArgument, PeerLost, UcclEpError
from uccl_ep.membership.agreement_service import AgreementService

SECRET = b"q" * 32


@contextmanager
def ranks(size: int) -> Iterator[list[AgreementService]]:
    made = [AgreementService(rank, size, SECRET, "127.0.0.1") for rank in range(size)]
    for one in made:
        one.meet({rank: other.address for rank, other in enumerate(made)})
    try:
        yield made
    finally:
        for one in made:
            one.close()


class Attempt(threading.Thread):
    """One rank's agree(), after a pause; `result` is its set or its error."""

    def __init__(
        self, one: AgreementService, deadline_s: float, pause_s: float = 0.0, hints: tuple[int, ...] = ()
    ) -> None:
        super().__init__()
        self.result: Any = None
        self._call = (one, deadline_s, pause_s, hints)
        self.start()

    def run(self) -> None:
        one, deadline_s, pause_s, hints = self._call
        time.sleep(pause_s)
        try:
            self.result = one.agree(hints, deadline_s)
        except UcclEpError as error:
            self.result = error


def results(attempts: list[Attempt]) -> list[Any]:
    for attempt in attempts:
        attempt.join(30.0)
        assert not attempt.is_alive()
    return [attempt.result for attempt in attempts]


@pytest.mark.parametrize("seed", range(40))
def test_agreement_service_agrees_while_ranks_die_at_random(seed: int) -> None:
    dice = random.Random(seed)
    size = dice.randint(2, 8)
    with ranks(size) as all_ranks:
        doomed = dice.sample(range(size), dice.randint(1, size - 1))
        dead = [rank for rank in doomed if dice.random() < 0.5]
        for rank in dead:
            all_ranks[rank].close()
        attempts = {r: Attempt(all_ranks[r], 5.0, dice.random() * 0.02) for r in range(size) if r not in dead}
        killers = [threading.Timer(dice.random() * 0.03, all_ranks[rank].close) for rank in doomed if rank not in dead]
        for killer in killers:
            killer.start()
        found = dict(zip(attempts, results(list(attempts.values())), strict=True))
        for killer in killers:
            killer.join()
        lived = set(range(size)) - set(doomed)
        sets = [found[rank] for rank in lived]
        assert all(one == sets[0] for one in sets), found
        assert lived <= set(sets[0]) and not set(dead) & set(sets[0]), (found, dead)


def test_agreement_service_goes_from_generation_to_generation() -> None:
    with ranks(5) as all_ranks:
        for lost, left in ((3, [0, 1, 2, 4]), (0, [1, 2, 4]), (4, [1, 2])):
            all_ranks[lost].close()
            assert results([Attempt(all_ranks[r], 5.0) for r in left]) == [left] * len(left)
        assert {all_ranks[r].generation for r in (1, 2)} == {3}
        assert results([Attempt(all_ranks[r], 5.0) for r in (1, 2)]) == [[1, 2]] * 2  # nobody lost: all go on


def test_agreement_service_waits_for_a_rank_that_comes_late_and_tells_it() -> None:
    with ranks(3) as all_ranks:
        calls: list[tuple[list[int], int]] = []
        called = threading.Event()

        def on_call(suspects: list[int], teller: int) -> None:
            calls.append((suspects, teller))
            called.set()

        all_ranks[2].on_call = on_call
        all_ranks[1].close()
        first = Attempt(all_ranks[0], 10.0, hints=(1,))
        assert called.wait(5.0)
        assert results([first, Attempt(all_ranks[2], 10.0, 0.3)]) == [[0, 2]] * 2
        assert calls == [([1], 0)]  # once, with whom it is about


def test_agreement_service_excludes_a_silent_rank_which_then_is_told() -> None:
    with ranks(4) as all_ranks:
        begin = time.monotonic()
        assert results([Attempt(all_ranks[r], 0.5) for r in (0, 1, 3)]) == [[0, 1, 3]] * 3
        assert 0.4 < time.monotonic() - begin < 5.0
        (error,) = results([Attempt(all_ranks[2], 5.0)])
        assert isinstance(error, PeerLost) and "rank 2 was excluded: rank " in str(error)
        assert "go on without it" in str(error)


def test_agreement_service_takes_over_a_decision_that_it_missed() -> None:
    """A rank that dies between two confirmations: who got one has decided, and the other learns it from there."""
    with ranks(3) as all_ranks:
        send = all_ranks[2]._send

        def cut(rank: int, generation: int, suspects: frozenset[int], phase: int) -> None:
            if not (rank == 1 and phase >= 1):
                send(rank, generation, suspects, phase)

        all_ranks[2]._send = cut  # type: ignore[method-assign]
        attempts = [Attempt(one, 3.0) for one in all_ranks]
        attempts[0].join(5.0)
        all_ranks[2].close()
        assert results(attempts)[:2] == [[0, 1, 2]] * 2


def test_agreement_service_alone_and_closed() -> None:
    with ranks(1) as (alone,):
        assert alone.agree([], 1.0) == [0]
    with ranks(2) as (waiting, _):
        attempt = Attempt(waiting, 20.0)
        time.sleep(0.05)
        waiting.close()
        (error,) = results([attempt])
        assert isinstance(error, InvalidArgument) and "closed" in str(error)
    with ranks(2) as (one, _), pytest.raises(UcclEpError, match="not an address with a port"):
        one.meet({1: "somewhere"})


BAD_MESSAGES = [
    {},
    {"g": 1},
    {"g": -1, "k": "state"},
    {"g": 1, "k": "song", "p": 0},
    {"g": 1, "k": "state", "p": 7, "n": 1, "x": [], "hints": [], "before": []},
    {"g": 1, "k": "state", "p": 0, "n": 1, "x": [9], "hints": [], "before": []},
    {"g": 1, "k": "state", "p": 0, "n": 1, "x": [0] * 5, "hints": [], "before": []},
    {"g": 1, "k": "state", "p": 0, "n": True, "x": [], "hints": [], "before": []},
    {"g": 1, "k": "state", "p": 0, "n": 1, "x": "all", "hints": [], "before": []},
    {"g": 1, "k": "give", "i": 99, "v": b""},
    {"g": 1, "k": "give", "i": 0, "v": "text"},
    {"g": 0, "k": "notice", "n": -1, "v": b""},
    {"g": 0, "k": "notice", "n": 1, "v": "text"},
    {"g": 0, "k": "notice", "n": 1, "v": b"x" * 4097},
]


@pytest.mark.parametrize("message", BAD_MESSAGES)
def test_agreement_service_refuses_what_no_rank_says(message: dict[str, Any]) -> None:
    with ranks(3) as all_ranks:
        with pytest.raises((ValueError, TypeError, KeyError)):
            all_ranks[0]._hear(1, message)
        with pytest.raises(ValueError):
            all_ranks[0]._hear(0, {"g": 1, "k": "give", "i": 0, "v": b""})
        all_ranks[1]._board.send(0, message)
        until = time.monotonic() + 5.0
        while all_ranks[0].strangers == 0 and time.monotonic() < until:
            time.sleep(0.002)
        assert all_ranks[0].strangers == 1


def _process(rank: int, size: int, pipe: Any, dies_after_s: float) -> None:
    one = AgreementService(rank, size, SECRET, "127.0.0.1")
    pipe.send(one.address)
    one.meet(dict(enumerate(pipe.recv())))
    if dies_after_s:
        threading.Timer(dies_after_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
    pipe.send(one.agree([], 10.0))
    pipe.recv()
    one.close()


@pytest.mark.parametrize("seed", range(4))
def test_agreement_service_of_processes(seed: int) -> None:
    dice = random.Random(seed)
    size = dice.randint(3, 6)
    doomed = set(dice.sample(range(size), dice.randint(1, size - 1)))
    context = multiprocessing.get_context("forkserver")
    pipes, processes = [], []
    for rank in range(size):
        here, there = context.Pipe()
        after_s = 0.001 + dice.random() * 0.02 if rank in doomed else 0.0
        processes.append(context.Process(target=_process, args=(rank, size, there, after_s)))
        processes[-1].start()
        there.close()
        pipes.append(here)
    try:
        addresses = [pipe.recv() for pipe in pipes]
        for pipe in pipes:
            pipe.send(addresses)
        lived = sorted(set(range(size)) - doomed)
        sets = [pipes[rank].recv() for rank in lived]
        assert all(one == sets[0] for one in sets) and set(lived) <= set(sets[0])
        for rank in lived:
            pipes[rank].send(None)
            processes[rank].join(10.0)
            assert processes[rank].exitcode == 0
    finally:
        for process in processes:
            process.kill()
            process.join()


def test_agreement_service_suspects_flood() -> None:
    """One rank hears nothing from another that all others hear: they give it up too, instead of each other."""
    with ranks(4) as all_ranks:
        send = all_ranks[3]._send

        def mute(rank: int, generation: int, suspects: frozenset[int], phase: int) -> None:
            if rank != 0:
                send(rank, generation, suspects, phase)

        all_ranks[3]._send = mute  # type: ignore[method-assign]
        found = results([Attempt(one, 8.0 if one.rank else 1.0) for one in all_ranks])
        assert found[:3] == [[0, 1, 2]] * 3, found
        assert isinstance(found[3], PeerLost) and "rank 3 was excluded" in str(found[3])


def test_agreement_service_wait_reports_reach_everybody_and_end_with_a_decision() -> None:
    with ranks(4) as (a, b, c, d):
        assert a.wait_reports(1, 0.05) == {}
        b.report_wait(3, "combine (receive)")
        c.report_wait(-1, "it does not know")
        began = time.monotonic()
        assert a.wait_reports(1, 10.0)[1].peer == 3
        assert time.monotonic() - began < 5.0  # as soon as it has come
        assert a.wait_reports(2, 10.0)[2].reason == "it does not know" and a.wait_reports(2, 0.0)[2].peer == -1
        b.report_wait(0, "an afterthought")
        assert c.wait_reports(1, 10.0)[1].peer == 3
        attempts = [Attempt(one, 1.0, hints=(3,)) for one in (a, b, c)]
        d.close()
        assert results(attempts) == [[0, 1, 2]] * 3
        assert a.wait_reports(1, 0.0) == {}  # those were about the group that was


def test_agreement_service_a_rank_that_ends_is_not_waited_for_and_its_last_word_comes() -> None:
    with ranks(3) as (a, b, c):
        b.report_wait(2, "the last word")
        b.close()
        assert c.wait_reports(1, 10.0)[1].reason == "the last word"
        a.report_wait(1, "finds that it is gone")
        began = time.monotonic()
        a.wait_reports(1, 10.0)
        assert time.monotonic() - began < 5.0


def test_agreement_service_a_rank_waited_for_that_is_alive_is_waited_for() -> None:
    with ranks(3) as (a, b, c):
        a.report_wait(1, "dispatch")  # b answers, though nobody has called anything there
        speaks = threading.Timer(0.5, b.report_wait, (2, "dispatch"))
        speaks.start()
        assert {rank: word.peer for rank, word in a.follow(1, 3.0, 30.0).items()} == {1: 2}
        speaks.join()
        began = time.monotonic()
        c.report_wait(0, "combine")
        assert c.follow(0, 0.05, 30.0)[0].peer == 1  # it had said so before
        assert time.monotonic() - began < 15.0
        assert a.silent() == b.silent() == set()


def test_agreement_service_who_does_not_answer_a_wait_report_is_silent() -> None:
    with ranks(4) as (a, b, c, d):
        assert a.silent() == {1, 2, 3}
        d.close()
        a.report_wait(1, "dispatch")
        assert eventually(lambda: a.silent() == {3})


def test_agreement_service_says_goodbye_to_who_has_no_other_way_to_know() -> None:
    with ranks(3) as all_ranks:
        heard: list[list[int]] = [[], [], []]
        for rank, one in enumerate(all_ranks):
            one.on_goodbye = heard[rank].append
        all_ranks[2].close(goodbye=[0])
        assert eventually(lambda: heard == [[2], [], []])
        results([Attempt(all_ranks[rank], 5.0) for rank in (0, 1)])
        all_ranks[1]._post(0, {"k": "goodbye", "g": 0})  # of a life that is over
        all_ranks[1].close(goodbye=[0])
        assert eventually(lambda: heard == [[2, 1], [], []])


def test_agreement_service_notices_reach_members_of_the_same_group() -> None:
    with ranks(3) as all_ranks:
        heard: list[tuple[int, int, bytes]] = []
        all_ranks[0].on_notice = lambda rank, number, what: heard.append((rank, number, what))
        all_ranks[1].notify([0, 2], 7, b"x" * 4096)
        assert eventually(lambda: heard == [(1, 7, b"x" * 4096)])
        all_ranks[2].close()
        results([Attempt(all_ranks[rank], 5.0) for rank in (0, 1)])
        all_ranks[1]._post(0, {"k": "notice", "g": 0, "n": 8, "v": b""})  # of a life that is over
        all_ranks[1].notify([0], 9, b"y")
        assert eventually(lambda: heard[1:] == [(1, 9, b"y")])
