"""A rank's end of its proxy: the same behaviour whether the proxy is threads or a process."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable
from io import BytesIO
from typing import Any

import msgpack
import psutil
import pytest

from tests.uccl_ep.proxies import DATA_BYTES, Half, connect, eventually
from uccl_ep import TransportError
from uccl_ep.fabric.config import FabricConfig
from uccl_ep.session import proxy_link
from uccl_ep.session.proxy_link import ProcessProxy, ProxyConfig, ThreadProxy, make_proxy, read_message

KINDS = [pytest.param(ThreadProxy, "loopback"), pytest.param(ThreadProxy, "tcp"), pytest.param(ProcessProxy, "tcp")]
BARRIER_WORD = 128  # ControlLayout::kBarrier


@pytest.mark.parametrize("kind, family", KINDS)
def test_proxy_link_carries_barriers_and_stops(kind: Callable[[ProxyConfig], Any], family: str) -> None:
    halves = [Half(rank, family) for rank in range(2)]
    links = [kind(half.config) for half in halves]
    try:
        connect(links, halves)
        for round_ in range(1, 20):
            threads = [threading.Thread(target=half.barrier, args=(round_,)) for half in halves]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert all(half.word(BARRIER_WORD) == round_ for half in halves)
        assert all(half.fault() is None for half in halves)
        assert eventually(lambda: halves[0].counted()[0]["barriers"] == 19)
    finally:
        for link in links:
            link.stop(0.5)
            link.stop(0.0)  # again: nothing to do
    assert all(half.fault() is None for half in halves)


@pytest.mark.parametrize("kind, family", KINDS[1:])
def test_proxy_link_a_bad_address_fails_with_a_reason(kind: Callable[[ProxyConfig], Any], family: str) -> None:
    half = Half(1, family)
    link = kind(half.config)
    try:
        with pytest.raises(TransportError, match="rank 0|address"):
            link.connect([b"nonsense", b""], [half.flat_bytes, 0], [0, 0])
    finally:
        link.stop(0.0)


@pytest.mark.parametrize("kind, family", KINDS)
def test_proxy_link_a_dismissed_peers_end_is_no_fault(kind: Callable[[ProxyConfig], Any], family: str) -> None:
    halves = [Half(rank, family) for rank in range(2)]
    links = [kind(half.config) for half in halves]
    try:
        connect(links, halves)
        links[0].dismiss_peer(1)
        links[1].stop(0.0)
        assert not eventually(lambda: halves[0].fault() is not None, 0.2)
        with pytest.raises((ValueError, TransportError), match="peer is 9"):
            links[0].dismiss_peer(9)
        links[0].admit(1 << 40, 0, [])  # nothing here registers memory
    finally:
        for link in links:
            link.stop(0.0)


def test_proxy_link_make_proxy_passes_every_field() -> None:
    fabric = FabricConfig((("mlx5_0", 2, 3),), queue_pairs=4)
    half = Half(0, "loopback", fabric=fabric, flush_call=[5, 6, 7])
    fields = {f.name for f in dataclasses.fields(ProxyConfig)}
    seen: dict[str, Any] = {}

    class Settings:
        def __setattr__(self, name: str, value: object) -> None:
            seen[name] = value

    class Native:
        ProxySettings, SpanSettings = Settings, type("Span", (), {})

        @staticmethod
        def Proxy(settings: object) -> str:  # noqa: N802 - the native name
            return "made"

    original = proxy_link._native
    try:
        proxy_link._native = Native  # type: ignore[assignment]
        assert make_proxy(half.config) == "made"  # type: ignore[comparison-overlap]
    finally:
        proxy_link._native = original
    assert {"interface", "connect_timeout_s", "devices"} | set(seen) >= fields
    assert [seen[name] for name in ("flush_call", "context_call", "context")] == half.config.flush_call
    assert seen["connect_timeout_ns"] == half.config.connect_timeout_s * 1e9
    for name in fields - {"spans", "interface", "connect_timeout_s", "fabric", "devices", "flush_call"}:
        assert seen[name] == getattr(half.config, name)
    assert seen["interface_address"] == half.config.interface
    assert [(s.offset, s.bytes, s.fd) for s in seen["spans"]] == half.config.spans
    assert seen["fabric"].queue_pairs == 4 and [n.device for n in seen["fabric"].nics] == ["mlx5_0"]
    assert half.config.descriptors() == [half.data.fd, half.control.fd, half.rings.fd, half.counters.fd]


@pytest.mark.parametrize("kind, family", KINDS)
def test_proxy_link_tells_what_its_transport_chose(kind: Callable[[ProxyConfig], Any], family: str) -> None:
    halves = [Half(rank, family) for rank in range(2)]
    links = [kind(half.config) for half in halves]
    try:
        connect(links, halves)
        notes = links[0].notes()
        assert isinstance(notes, list) and all(isinstance(n, tuple) and len(n) == 2 for n in notes)
    finally:
        for link in links:
            link.stop(0.0)


def test_proxy_link_memory_of_a_device_is_named_by_offset() -> None:
    """A dma-buf is a descriptor that a proxy process inherits; an address is one only in this process."""
    half = Half(0, "tcp")
    rows = (0, DATA_BYTES, -1)
    config = dataclasses.replace(
        half.config, spans=[rows, half.config.spans[1]], devices=[(0, 0x7F0000000000, [half.data.fd])]
    )
    assert config.descriptors() == [half.control.fd, half.rings.fd, half.counters.fd, half.data.fd]
    plain = msgpack.unpackb(msgpack.packb(dataclasses.asdict(config)), raw=False)
    assert ProxyConfig.from_plain(plain) == config
    for kind in (ThreadProxy, ProcessProxy):
        link = kind(config)
        assert link.local_address()
        link.stop(0.0)
    assert ThreadProxy(dataclasses.replace(config, devices=[(0, 0x7F0000000000, [])])).local_address()
    with pytest.raises((ValueError, TransportError), match="a span has neither memory nor a device's"):
        ThreadProxy(dataclasses.replace(config, devices=[]))


def test_proxy_link_process_survives_the_thread_that_started_it() -> None:
    half = Half(0, "tcp")
    made: list[ProcessProxy] = []
    thread = threading.Thread(target=lambda: made.append(ProcessProxy(half.config)))
    thread.start()
    thread.join()
    try:
        assert not eventually(lambda: not psutil.pid_exists(made[0].pid), 0.3)
        assert made[0].local_address()
    finally:
        made[0].stop(0.0)
    assert not psutil.pid_exists(made[0].pid)


def test_proxy_link_a_refused_config_leaves_no_process() -> None:
    half = Half(0, "carrier-pigeon")
    children = psutil.Process().children()
    for kind in (ThreadProxy, ProcessProxy):
        with pytest.raises((ValueError, RuntimeError), match="carrier-pigeon"):
            kind(half.config)
    assert psutil.Process().children() == children


def test_proxy_link_a_killed_process_is_named() -> None:
    half = Half(0, "tcp")
    link = ProcessProxy(half.config)
    os.kill(link.pid, 9)
    with pytest.raises(TransportError, match=rf"the proxy process \(pid {link.pid}, exit code .*\) is gone"):
        link.start()
    link.stop(1.0)
    assert not psutil.pid_exists(link.pid)


def test_proxy_link_a_stopped_process_is_given_up_and_ended() -> None:
    half = Half(0, "tcp")
    link = ProcessProxy(half.config)
    os.kill(link.pid, signal.SIGSTOP)
    begin = time.monotonic()
    link.stop(0.5)
    assert 0.5 <= time.monotonic() - begin < 20.0
    assert not psutil.pid_exists(link.pid)


def test_proxy_link_answers_come_in_pieces_or_not_at_all() -> None:
    reading, writing = os.pipe()
    try:
        answers = proxy_link._Answers(reading, time.monotonic() + 20.0)
        body = msgpack.packb({"value": 7})
        os.write(writing, len(body).to_bytes(4, "little") + body[:2])
        late = threading.Thread(target=lambda: os.write(writing, body[2:]))
        late.start()
        assert read_message(answers) == {"value": 7}
        late.join()
        with pytest.raises(TimeoutError):
            proxy_link._Answers(reading, time.monotonic() + 0.05).read(4)
        os.write(writing, b"ab")
    finally:
        os.close(writing)
        assert answers.read(4) == b"ab"
        os.close(reading)


def test_proxy_link_read_message() -> None:
    def stream(body: bytes) -> BytesIO:
        return BytesIO(len(body).to_bytes(4, "little") + body)

    assert read_message(stream(msgpack.packb({"a": b"\x00"}))) == {"a": b"\x00"}
    for broken in (BytesIO(b""), BytesIO(b"\x01\x00"), stream(msgpack.packb([1]))):
        with pytest.raises(EOFError):
            read_message(broken)
