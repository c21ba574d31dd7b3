"""Two ends that know one code find each other; strangers do not, and end nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from uccl_ep.errors import UcclEpError
from uccl_ep.tools.check.talk import Talk, call, listen, new_code


def served(code: str, body: Callable[[Talk], Any]) -> tuple[int, threading.Thread, list[Any]]:
    """The port, the thread, and what `body` gives at the end that listens."""
    ready, ports, results = threading.Event(), [], []

    def note(address: str, port: int) -> None:
        ports.append(port)
        ready.set()

    def serve() -> None:
        with listen("127.0.0.1", 0, code, note) as talk:
            results.append(body(talk))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert ready.wait(10.0)
    return ports[0], thread, results


def test_talk_exchanges_values_and_a_secret() -> None:
    code = new_code()
    port, thread, results = served(
        code, lambda talk: (talk.rank, talk.secret, talk.exchange([1, b"a"]), talk.exchange(2))
    )
    with call("127.0.0.1", port, code) as talk:
        assert talk.rank == 0 and talk.exchange({"x": 7}) == [1, b"a"] and talk.exchange(None) == 2
        secret = talk.secret
    thread.join(10.0)
    assert results == [(1, secret, {"x": 7}, None)] and len(secret) == 32


def test_talk_strangers_are_dropped_and_the_listener_goes_on() -> None:
    code = new_code()
    port, thread, results = served(code, lambda talk: talk.exchange("here"))
    with pytest.raises(UcclEpError, match=f"127.0.0.1, port {port} has another code, or is no uccl-ep check"):
        call("127.0.0.1", port, new_code())
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.0\r\n\r\n" + b"x" * 64)
    with call("127.0.0.1", port, code) as talk:
        assert talk.exchange("there") == "here"
    thread.join(10.0)
    assert results == ["there"]


def test_talk_a_changed_message_is_refused() -> None:
    code = new_code()

    def garbled(talk: Talk) -> None:
        body = b"\x01"
        talk._socket.sendall(len(body).to_bytes(4, "little") + bytes(32) + body)

    port, thread, _ = served(code, garbled)
    with call("127.0.0.1", port, code) as talk, pytest.raises(UcclEpError, match="said nothing that is known here"):
        talk.exchange(1)
    thread.join(10.0)


def test_talk_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(UcclEpError, match="does not answer: .*; does `uccl-ep check` run there"):
        call("127.0.0.1", port, "x")
    with pytest.raises(UcclEpError, match="cannot listen on 192.0.2.1"):
        listen("192.0.2.1", 0, "x", lambda address, port: None)
