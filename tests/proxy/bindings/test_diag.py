"""The event rings through Python: threads and a process of its own write them, and they outlive the writer."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.uccl_ep.proxies import Half, connect, eventually
from uccl_ep import TransportError, _native
from uccl_ep._native import EventKind
from uccl_ep.recorder.events import decode
from uccl_ep.session.proxy_link import ProcessProxy, ProxyConfig, ThreadProxy

CAPACITY = 64
KINDS = [pytest.param(ThreadProxy, id="threads"), pytest.param(ProcessProxy, id="process")]


def recorded_half(rank: int, segment: _native.Segment, **changes: Any) -> Half:
    return Half(rank, "tcp", events_fd=segment.fd, event_capacity=CAPACITY, **changes)


def barrier_rounds(segment: _native.Segment) -> list[tuple[int, int]]:
    """(0 entered or 1 over, round) of each barrier event."""
    first, written, traced, data = _native.read_events(segment.address, CAPACITY, 0)
    assert written - first == len(data) // _native.EVENT_BYTES and traced is True
    return [(key, value) for _, kind, _, key, value in decode(data).tolist() if kind == EventKind.BARRIER]


@pytest.mark.parametrize("kind", KINDS)
def test_bindings_diag_events_of_a_proxy(kind: Callable[[ProxyConfig], Any]) -> None:
    segments = [_native.Segment.create(f"test-events-{r}", _native.events_bytes(1, CAPACITY)) for r in range(2)]
    halves = [recorded_half(rank, segment, trace=True) for rank, segment in enumerate(segments)]
    links = [kind(half.config) for half in halves]
    try:
        connect(links, halves)
        for half in halves:
            half.barrier_command(1)
        wanted = [(0, 1), (1, 1)]
        assert eventually(lambda: all(half.word(128) == 1 for half in halves))
        assert eventually(lambda: barrier_rounds(segments[0]) == wanted == barrier_rounds(segments[1]))
        if kind is ProcessProxy:
            os.kill(links[0].pid, signal.SIGKILL)
    finally:
        for link in links:
            link.stop(0.0)
    assert barrier_rounds(segments[0])[:2] == wanted  # what a proxy has recorded outlives it


def test_bindings_diag_nothing_is_recorded_without_a_segment() -> None:
    assert Half(0, "tcp").config.events_fd == -1
    unopened = _native.Segment.create("test-events", _native.events_bytes(2, CAPACITY))
    assert _native.read_events(unopened.address, CAPACITY, 1) == (0, 0, False, b"")


def test_bindings_diag_rings_have_places_of_their_own() -> None:
    assert _native.events_bytes(3, CAPACITY) == 3 * (64 + CAPACITY * _native.EVENT_BYTES)


@pytest.mark.parametrize("capacity, words", [(0, "power of two"), (48, "power of two"), (1 << 20, "bytes")])
def test_bindings_diag_bad_sizes_are_refused(capacity: int, words: str) -> None:
    segment = _native.Segment.create("test-events", _native.events_bytes(1, CAPACITY))
    half = Half(0, "tcp", events_fd=segment.fd, event_capacity=capacity)
    with pytest.raises((ValueError, RuntimeError, TransportError), match=words):
        ThreadProxy(half.config)
