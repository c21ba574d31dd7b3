"""The thread that messengers share: turns when asked for, each alone in its faults, and an end after the last."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from tests.uccl_ep.forks import in_child
from uccl_ep.membership import switchboard


class Client:
    """Counts its turns; `waits` is what they return, the last of them for ever."""

    def __init__(self, *waits: float | None) -> None:
        self.waits = list(waits)
        self.turns, self.fails = 0, False
        self.turned, self.ended = threading.Event(), threading.Event()
        self.thread: threading.Thread | None = None
        self.readable, self.writable = os.pipe()

    def fileno(self) -> int:
        return self.readable

    def turn(self) -> float | None:
        self.turns += 1
        self.thread = threading.current_thread()
        self.turned.set()
        if self.fails:
            raise RuntimeError("a client's own fault")
        return self.waits.pop(0) if len(self.waits) > 1 else self.waits[0]

    def finish(self) -> None:
        os.close(self.readable)
        os.close(self.writable)
        self.ended.set()

    def has_turn(self) -> bool:
        came = self.turned.wait(10.0)
        self.turned.clear()
        return came


@pytest.fixture
def two() -> Iterator[tuple[Client, Client, switchboard.Switchboard]]:
    before = set(threading.enumerate())
    one, other = Client(None), Client(None)
    board = switchboard.join(one)
    assert switchboard.join(other) is board
    assert one.has_turn() and other.has_turn() and one.thread is other.thread
    yield one, other, board
    for client in (one, other):
        client.waits, client.fails = [-1.0], False
        board.ring(client)
        assert client.ended.wait(10.0)
    board.settle()
    assert set(threading.enumerate()) == before


def test_switchboard_gives_turns_to_who_is_rung_for_or_has_something_to_read(
    two: tuple[Client, Client, switchboard.Switchboard],
) -> None:
    one, other, board = two
    board.ring(one)
    assert one.has_turn()
    os.write(other.writable, b"x")
    assert other.has_turn()
    assert one.turns == 2


def test_switchboard_gives_turns_by_the_clock() -> None:
    client = Client(0.001, 0.001, -1.0)
    board = switchboard.join(client)
    assert client.ended.wait(10.0) and client.turns == 3
    board.settle()


def test_switchboard_lets_a_client_fail_alone(
    two: tuple[Client, Client, switchboard.Switchboard], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other, board = two
    said: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: said.append(args.exc_value))
    one.fails = True
    board.ring(one)
    assert one.ended.wait(10.0)
    board.ring(other)
    assert other.has_turn()
    assert [str(error) for error in said] == ["a client's own fault"]


def test_switchboard_starts_again_after_the_last_one_has_gone() -> None:
    first = Client(-1.0)
    old = switchboard.join(first)
    assert first.ended.wait(10.0)
    second = Client(-1.0)
    new = switchboard.join(second)
    assert new is not old and second.ended.wait(10.0)
    for board in (old, new):
        board.settle()


def test_switchboard_of_a_child_of_fork_is_its_own(two: tuple[Client, Client, switchboard.Switchboard]) -> None:
    def child() -> tuple[bool, bool]:
        client = Client(-1.0)
        return switchboard.join(client) is not two[2], client.ended.wait(10.0)

    assert in_child(child) == (True, True)
