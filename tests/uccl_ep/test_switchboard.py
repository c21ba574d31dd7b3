"""Messages between ranks: delivered in order to who has the secret; strangers get no memory and are counted."""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from uccl_ep import switchboard
from uccl_ep.switchboard import MAX_FRAME_BYTES, Switchboard

SECRET = b"\x01s" * 16


def eventually(condition: Callable[[], object], seconds: float = 10.0) -> bool:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.002)
    return True


class End:
    """A switchboard that remembers what it heard."""

    def __init__(self, rank: int, secret: bytes = SECRET, bad: bool = False) -> None:
        self.heard: list[tuple[int, Any]] = []
        self.gone: list[int] = []
        self._bad = bad
        self.board = Switchboard(rank, secret, "127.0.0.1", self._hear, self.gone.append)

    def _hear(self, rank: int, message: Any) -> None:
        if self._bad:
            raise ValueError("not what a rank says")
        self.heard.append((rank, message))


@contextmanager
def ends(*given: End) -> Iterator[None]:
    addresses = {end.board.rank: end.board.address for end in given}
    for end in given:
        end.board.meet(addresses)
    try:
        yield
    finally:
        for end in given:
            end.board.close()


def test_switchboard_delivers_in_order_both_ways() -> None:
    a, b = End(0), End(1)
    with ends(a, b):
        for i in range(200):
            a.board.send(1, {"i": i})
            b.board.send(0, {"i": -i, "blob": b"x" * (i * 97 % 5000)})
        assert eventually(lambda: len(a.heard) == len(b.heard) == 200)
        assert [m["i"] for _, m in b.heard] == list(range(200))
        assert [m["i"] for _, m in a.heard] == [-i for i in range(200)]
        assert {r for r, _ in a.heard} == {1} and {r for r, _ in b.heard} == {0}
        assert (a.board.strangers, b.board.strangers, a.gone, b.gone) == (0, 0, [], [])


def test_switchboard_carries_its_largest_message_and_refuses_a_larger() -> None:
    a, b = End(0), End(1)
    with ends(a, b):
        blob = b"y" * (MAX_FRAME_BYTES - 16)
        a.board.send(1, {"b": blob})
        assert eventually(lambda: b.heard) and b.heard[0][1]["b"] == blob
        with pytest.raises(ValueError, match="refused"):
            a.board.send(1, {"b": b"y" * MAX_FRAME_BYTES})


def test_switchboard_tells_of_a_rank_that_has_ended() -> None:
    a, b, c = End(0), End(1), End(2)
    with ends(a, b, c):
        a.board.send(1, {})
        assert eventually(lambda: b.heard)
        b.board.close()  # while a holds a connection to it
        assert eventually(lambda: a.gone == [1])
        c.board.send(1, {})  # and before c has one
        assert eventually(lambda: c.gone == [1])
        a.board.send(2, {"still": 1})
        assert eventually(lambda: c.heard)


def test_switchboard_of_another_secret_is_a_stranger() -> None:
    a, b = End(0), End(1, secret=b"another" * 4)
    with ends(a, b):
        b.board.send(0, {"i": 1})
        assert eventually(lambda: a.board.strangers >= 1) and not a.heard


def dial(end: End) -> tuple[socket.socket, bytes]:
    sock = socket.create_connection(end.board.address, timeout=5.0)
    nonce = sock.recv(32)
    assert len(nonce) == 32
    return sock, nonce


def key() -> bytes:
    return hmac.new(SECRET, b"uccl-ep switchboard", hashlib.sha256).digest()


def hello(nonce: bytes, sender: int = 1, receiver: int = 0) -> bytes:
    names = struct.pack("<HH", sender, receiver)
    return names[:2] + hmac.new(key(), b"hello" + nonce + names, hashlib.sha256).digest()


def frame(nonce: bytes, number: int, body: bytes) -> bytes:
    seal = hmac.new(key(), b"frame" + nonce + struct.pack("<Q", number) + body, hashlib.sha256).digest()
    return struct.pack("<I", len(body)) + seal + body


def is_dropped(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


GOOD = b"\x81\xa1i\x07"  # {"i": 7}
HOSTILE: dict[str, Callable[[bytes], bytes]] = {
    "noise": lambda nonce: b"\xff" * 100,
    "a hello without the secret": lambda nonce: b"\x01\x00" + b"\0" * 32,
    "a hello for another rank": lambda nonce: hello(nonce, receiver=5),
    "a hello of another connection": lambda nonce: hello(b"\0" * 32),
    "a length beyond the limit": lambda nonce: hello(nonce) + struct.pack("<I", MAX_FRAME_BYTES + 1) + b"\0" * 32,
    "an unsealed frame": lambda nonce: hello(nonce) + struct.pack("<I", len(GOOD)) + b"\0" * 32 + GOOD,
    "a frame twice": lambda nonce: hello(nonce) + frame(nonce, 0, GOOD) * 2,
    "a frame that is left out": lambda nonce: hello(nonce) + frame(nonce, 1, GOOD),
    "no msgpack": lambda nonce: hello(nonce) + frame(nonce, 0, b"\xc1"),
    "no map": lambda nonce: hello(nonce) + frame(nonce, 0, b"\x93\x01\x02\x03"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_switchboard_drops_and_counts_hostile_bytes(what: str) -> None:
    end = End(0)
    with ends(end):
        sock, nonce = dial(end)
        sock.sendall(HOSTILE[what](nonce))
        assert is_dropped(sock)
        assert eventually(lambda: end.board.strangers == 1)
        assert len(end.heard) == (1 if what == "a frame twice" else 0)
        sock.close()
        sock, nonce = dial(end)  # and goes on with who is none
        data = hello(nonce) + frame(nonce, 0, GOOD)
        for i in range(len(data)):  # however it is cut
            sock.sendall(data[i : i + 1])
        assert eventually(lambda: (1, {"i": 7}) in end.heard[-1:])
        sock.close()


def test_switchboard_drops_who_says_what_no_rank_says() -> None:
    end = End(0, bad=True)
    with ends(end):
        sock, nonce = dial(end)
        sock.sendall(hello(nonce) + frame(nonce, 0, GOOD))
        assert is_dropped(sock) and eventually(lambda: end.board.strangers == 1)


def test_switchboard_gives_silent_strangers_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    end, peer = End(0), End(1)
    with ends(end, peer):
        crowd = [dial(end)[0] for _ in range(switchboard._MAX_STRANGERS + 8)]
        assert eventually(lambda: end.board.strangers >= 8)  # the oldest have given way
        peer.board.send(0, {"i": 1})
        assert eventually(lambda: end.heard)
        for sock in crowd:
            sock.close()
        assert eventually(lambda: end.board.strangers == len(crowd))
        monkeypatch.setattr(switchboard, "_HELLO_S", 0.1)
        sock, _ = dial(end)
        assert is_dropped(sock)  # has said nothing in time


def test_switchboard_leaves_no_thread_and_no_socket() -> None:
    before = set(threading.enumerate())
    a, b = End(0), End(1)
    with ends(a, b):
        a.board.send(1, {})
        assert eventually(lambda: b.heard)
    assert set(threading.enumerate()) == before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(a.board.address, timeout=1.0)
    a.board.close()
    a.board.send(1, {})  # without effect


def test_switchboard_last_words_arrive_though_close_follows_at_once() -> None:
    for _ in range(20):
        a, b = End(0), End(1)
        with ends(a, b):
            for number in range(5):
                a.board.send(1, {"n": number})
            a.board.close()
            assert eventually(lambda heard=b.heard: len(heard) == 5)


def test_switchboard_close_waits_for_nobody_who_does_not_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        a = End(0)
        a.board.meet({1: silent.getsockname()[:2]})
        a.board.send(1, {"n": 0})
        began = time.monotonic()
        a.board.close()
        assert time.monotonic() - began < 5.0
