"""Messages between ranks: delivered in order to who has the secret; strangers get no memory and are counted."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgpack
import pytest

from uccl_ep.membership import messenger as messenger
from uccl_ep.membership.messenger import MAX_FRAME_BYTES, Messenger
from uccl_ep.membership.proof import Talk, keyed, seal

SECRET = b"\x01s" * 16


def eventually(condition: Callable[[], object], seconds: float = 10.0) -> bool:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.002)
    return True


class End:
    """A messenger that remembers what it heard."""

    def __init__(self, rank: int, secret: bytes = SECRET, bad: bool = False) -> None:
        self.heard: list[tuple[int, Any]] = []
        self.gone: list[int] = []
        self._bad = bad
        self.board = Messenger(rank, secret, "127.0.0.1", self._hear, self.gone.append)

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


def test_messenger_delivers_in_order_both_ways() -> None:
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


def test_messenger_carries_its_largest_message_and_refuses_a_larger() -> None:
    a, b = End(0), End(1)
    with ends(a, b):
        blob = b"y" * (MAX_FRAME_BYTES - 16)
        a.board.send(1, {"b": blob})
        assert eventually(lambda: b.heard) and b.heard[0][1]["b"] == blob
        with pytest.raises(ValueError, match=f"bytes: at most {MAX_FRAME_BYTES} may be sent"):
            a.board.send(1, {"b": b"y" * MAX_FRAME_BYTES})


def test_messenger_tells_of_a_rank_that_has_ended() -> None:
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


def test_messenger_of_another_secret_is_counted_out() -> None:
    a, b = End(0), End(1, secret=b"another" * 4)
    with ends(a, b):
        b.board.send(0, {"i": 1})
        assert eventually(lambda: a.board.strangers >= 1) and not a.heard


def dial(end: End) -> tuple[socket.socket, bytes]:
    sock = socket.create_connection(end.board.address, timeout=5.0)
    nonce = receive(sock, 32)
    assert len(nonce) == 32
    return sock, nonce


OWN = b"\x05" * 32  # the nonce of who dials here


def talk(nonce: bytes, sender: int = 1, receiver: int = 0) -> Talk:
    return Talk(keyed(SECRET, b"uccl-ep messenger"), sender, receiver, OWN, nonce)


def hello(nonce: bytes, sender: int = 1, receiver: int = 0) -> bytes:
    return struct.pack("<H", sender) + OWN + talk(nonce, sender, receiver).proof(b"connector")


def answer(nonce: bytes, taken: int = 0, label: bytes = b"acceptor") -> bytes:
    count = struct.pack("<Q", taken)
    return count + talk(nonce).proof(label, count)


def frame(nonce: bytes, number: int, body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + seal(talk(nonce).proof(b"frames"), number, body) + body


def receive(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := sock.recv(size - len(data))):
        data += more
    return data


def is_dropped(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


GOOD = b"\x81\xa1i\x07"  # {"i": 7}
HOSTILE: dict[str, Callable[[bytes], bytes]] = {
    "noise": lambda nonce: b"\xff" * 100,
    "a hello without the secret": lambda nonce: b"\x01\x00" + b"\0" * 64,
    "its own words": lambda nonce: b"\x01\x00" + nonce + talk(nonce).proof(b"acceptor"),
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
def test_messenger_drops_and_counts_hostile_bytes(what: str) -> None:
    end = End(0)
    with ends(end):
        sock, nonce = dial(end)
        sock.sendall(HOSTILE[what](nonce))
        taken = int(what in ("a frame twice", "no msgpack", "no map"))
        if HOSTILE[what](nonce).startswith(hello(nonce)):
            assert receive(sock, 40) == answer(nonce)
        assert is_dropped(sock)
        assert eventually(lambda: end.board.strangers == 1)
        assert len(end.heard) == (1 if what == "a frame twice" else 0)
        sock.close()
        sock, nonce = dial(end)  # and goes on with who is none
        data = hello(nonce) + frame(nonce, taken, GOOD)
        for i in range(len(data)):  # however it is cut
            sock.sendall(data[i : i + 1])
        assert eventually(lambda: (1, {"i": 7}) in end.heard[-1:])
        assert receive(sock, 40) == answer(nonce, taken) and end.board.strangers == 1
        sock.close()


def test_messenger_a_rank_that_comes_anew_takes_its_own_place() -> None:
    end = End(0)
    with ends(end):
        (first, nonce), (second, other) = dial(end), dial(end)
        first.sendall(hello(nonce))
        assert receive(first, 40) == answer(nonce)
        second.sendall(hello(other) + frame(other, 0, GOOD))
        assert is_dropped(first)
        assert eventually(lambda: end.heard == [(1, {"i": 7})]) and end.board.strangers == 0
        second.close()


def test_messenger_drops_who_says_what_no_rank_says() -> None:
    end = End(0, bad=True)
    with ends(end):
        sock, nonce = dial(end)
        sock.sendall(hello(nonce) + frame(nonce, 0, GOOD))
        assert receive(sock, 40) == answer(nonce)
        assert is_dropped(sock) and eventually(lambda: end.board.strangers == 1)


class Between:
    """Stands where rank 0 listens, and hands on what rank 1 says there."""

    def __init__(self, end: End) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.settimeout(5.0)
        self._to = end.board.address

    def accept(self) -> tuple[socket.socket, socket.socket, int]:
        """The next connection of rank 1, and one to rank 0: proven to each other, with the frames that rank 0 has."""
        peer, own = self.server.accept()[0], socket.create_connection(self._to, timeout=5.0)
        peer.settimeout(5.0)
        peer.sendall(receive(own, 32))
        own.sendall(receive(peer, 66))
        said = receive(own, 40)
        peer.sendall(said)
        return peer, own, struct.unpack("<Q", said[:8])[0]


CHANGES: list[Callable[[bytes, bytes], bytes]] = [
    lambda one, two: one[:-1] + bytes([one[-1] ^ 1]) + two,
    lambda one, two: one + one + two,
    lambda one, two: two + one,
    lambda one, two: one[:4] + b"\0" * 32 + one[36:],
    lambda one, two: b"\xff" * 4 + one[4:],
]


def test_messenger_forged_replayed_and_reordered_frames_end_nothing() -> None:
    """Somebody changes what he hands on: every change is counted, nothing is lost, nobody has gone."""
    a, b = End(0), End(1)
    between = Between(a)
    size, sent = len(frame(b"", 0, msgpack.packb({"i": 0}))), 0
    with ends(a, b), between.server:
        b.board.meet({0: between.server.getsockname()[:2]})
        for change in [*CHANGES, lambda one, two: one + two]:
            for _ in range(2):
                b.board.send(0, {"i": sent})
                sent += 1
            peer, own, taken = between.accept()
            frames = [receive(peer, size) for _ in range(sent - taken)]
            own.sendall(b"".join(frames[:-2]) + change(*frames[-2:]))
            if change in CHANGES:
                assert is_dropped(own)
                peer.close()
                own.close()
        assert eventually(lambda: len(a.heard) == sent)
        assert [message["i"] for _, message in a.heard] == list(range(sent))
        assert (a.board.strangers, b.board.strangers, a.gone, b.gone) == (len(CHANGES), 0, [], [])
        peer.close()
        own.close()


def test_messenger_who_connects_asks_for_proof_too() -> None:
    """Who listens in a rank's place and lacks the secret hears no message, is counted, and makes nobody gone."""
    end = End(1)
    with ends(end), socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5.0)
        end.board.meet({0: server.getsockname()[:2]})
        end.board.send(0, {"i": 7})
        nonce, heard = b"\x09" * 32, b""
        for number in range(4):
            sock = server.accept()[0]
            sock.settimeout(5.0)
            sock.sendall(nonce)
            said = receive(sock, 66)
            assert SECRET not in said and said[2:34] not in heard  # a nonce of its own each time
            replies = [b"\0" * 40, b"\0" * 8 + said[34:], answer(nonce), heard[-40:]]
            heard += said
            sock.sendall(replies[number])
            assert is_dropped(sock)  # without one more byte
            sock.close()
        assert eventually(lambda: end.board.strangers == 4)
        assert end.gone == []


def test_messenger_a_recorded_connection_is_of_no_use() -> None:
    a, b = End(0), End(1)
    with ends(a, b):
        sock, nonce = dial(a)
        recorded = hello(nonce) + frame(nonce, 0, GOOD)
        sock.sendall(recorded)
        assert eventually(lambda: a.heard == [(1, {"i": 7})])
        again, _ = dial(a)
        again.sendall(recorded)
        assert is_dropped(again) and a.board.strangers == 1
        sock.sendall(frame(nonce, 1, GOOD))  # the one that was recorded goes on
        assert eventually(lambda: a.heard == [(1, {"i": 7})] * 2)


def test_messenger_gives_silent_strangers_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    end, peer = End(0), End(1)
    with ends(end, peer):
        crowd = [dial(end)[0] for _ in range(messenger._MAX_STRANGERS + 8)]
        assert eventually(lambda: end.board.strangers >= 8)  # the oldest have given way
        peer.board.send(0, {"i": 1})
        assert eventually(lambda: end.heard)
        for sock in crowd:
            sock.close()
        assert eventually(lambda: end.board.strangers == len(crowd))
        monkeypatch.setattr(messenger, "_HELLO_S", 0.1)
        sock, _ = dial(end)
        assert is_dropped(sock)  # has said nothing in time


def test_messenger_leaves_no_thread_and_no_socket() -> None:
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


def test_messenger_last_words_arrive_though_close_follows_at_once() -> None:
    for _ in range(20):
        a, b = End(0), End(1)
        with ends(a, b):
            for number in range(5):
                a.board.send(1, {"n": number})
            a.board.close()
            assert eventually(lambda heard=b.heard: len(heard) == 5)


def test_messenger_close_waits_for_nobody_who_does_not_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        a = End(0)
        a.board.meet({1: silent.getsockname()[:2]})
        a.board.send(1, {"n": 0})
        began = time.monotonic()
        a.board.close()
        assert time.monotonic() - began < 5.0
