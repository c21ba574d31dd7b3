"""What Python reads of a running proxy: rings, counters and the fault record."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.uccl_ep.proxies import CAPACITY, Half, connect, eventually
from uccl_ep import _native
from uccl_ep.session.proxy_link import ThreadProxy

COUNTERS_H = Path(__file__).parents[3] / "proxy" / "engine" / "counters.h"
FAULT_OFFSET = 64  # ControlLayout::kFault


def fields_of(struct_name: str) -> list[str]:
    """The u64 fields of a struct in counters.h, in order."""
    body = COUNTERS_H.read_text().split(f"struct alignas(64) {struct_name} {{")[1].split("};")[0]
    code = " ".join(line.split("//")[0] for line in body.splitlines())
    return [name.strip() for part in code.split(";") for name in part.replace("u64", "").split(",") if name.strip()]


@pytest.mark.parametrize("workers, ranks", [(1, 1), (3, 5)])
def test_bindings_counters_have_every_field_in_its_place(workers: int, ranks: int) -> None:
    worker_fields, peer_fields = fields_of("WorkerCounters"), fields_of("PeerCounters")
    worker_words, peer_words = (-(-len(f) * 8 // 64) * 8 for f in (worker_fields, peer_fields))
    size = _native.counters_bytes(workers, ranks)
    assert size == 8 * (workers * worker_words + ranks * peer_words)
    words = np.arange(size // 8, dtype=np.uint64)
    got_workers, got_peers = _native.read_counters(words.ctypes.data, workers, ranks)
    for i, counters in enumerate(got_workers):
        assert counters == {name: i * worker_words + j for j, name in enumerate(worker_fields)}
    for i, counters in enumerate(got_peers):
        first = workers * worker_words + i * peer_words
        assert counters == {name: first + j for j, name in enumerate(peer_fields)}


def test_bindings_fault_record_is_read_when_it_is_ready() -> None:
    control = np.zeros(512, dtype=np.uint8)
    assert _native.read_fault(control.ctypes.data) is None
    detail = _native.DetailKind.LOCAL_EXPERT << 24 | 3
    record = (1, 0, 4, 6, 17, detail, 1 << 40, (1 << 64) - 1, 5, 6)  # claimed, ready, kind, phase, peer, detail, ...
    struct.pack_into("<6I4Q", control, FAULT_OFFSET, *record)
    assert _native.read_fault(control.ctypes.data) is None  # claimed, not yet complete
    struct.pack_into("<I", control, FAULT_OFFSET + 4, 1)
    assert _native.read_fault(control.ctypes.data) == {
        "kind": 4,
        "phase": 6,
        "peer": 17,
        "detail_kind": _native.DetailKind.LOCAL_EXPERT,
        "detail": 3,
        "expected": 1 << 40,
        "seen": (1 << 64) - 1,
        "last_seen_ns": 5,
        "waited_ns": 6,
    }


def test_bindings_rings_are_idle_when_every_command_is_complete() -> None:
    halves = [Half(rank, "loopback") for rank in range(2)]
    assert all(_native.rings_idle(h.rings.address, 1, CAPACITY) for h in halves)  # new rings: nothing to do
    halves[0].barrier_command(1)
    assert not _native.rings_idle(halves[0].rings.address, 1, CAPACITY)  # pushed, and nobody there to take it
    halves[1].barrier_command(1)
    links = [ThreadProxy(half.config) for half in halves]
    try:
        connect(links, halves)
        assert eventually(lambda: all(_native.rings_idle(h.rings.address, 1, CAPACITY) for h in halves))
    finally:
        for link in links:
            link.stop(0.0)


@pytest.mark.parametrize("capacity", [2, 16, 1 << 20])
def test_bindings_ring_bytes(capacity: int) -> None:
    assert _native.ring_bytes(capacity) == 256 + 16 * capacity  # a header of four cache lines, then commands


def test_bindings_secret_keeps_zero_bytes() -> None:
    settings = _native.ProxySettings()
    settings.secret = b"\x00a\x00\xff"
    assert settings.secret == b"\x00a\x00\xff"


@pytest.mark.parametrize("name, value", [
    ("rank", 3), ("num_ranks", 4096), ("family", "tcp"), ("session", 2**63), ("max_in_flight_bytes", 2**40),
    ("cpus", [1, 2]), ("connect_timeout_ns", 7), ("interface_address", "::1"), ("shuffle_seed", 2**64 - 1),
])  # fmt: skip
def test_bindings_settings_hold_what_they_are_given(name: str, value: Any) -> None:
    settings = _native.ProxySettings()
    setattr(settings, name, value)
    assert getattr(settings, name) == value


def test_bindings_settings_refuse_other_types_and_ranges() -> None:
    settings = _native.ProxySettings()
    for name, value in (("rank", -1), ("rank", 2**32), ("rank", "0"), ("session", 2**64), ("family", 5)):
        with pytest.raises(TypeError):
            setattr(settings, name, value)


def test_bindings_proxy_of_a_lost_peer_leaves_a_fault() -> None:
    halves = [Half(rank, "tcp") for rank in range(2)]
    links = [ThreadProxy(half.config) for half in halves]
    peer = subprocess.Popen(["sleep", "40"])  # stands for the peer's process, and ends when the test says so
    try:
        connect(links, halves, pids=(0, peer.pid))
        assert halves[0].fault() is None
        peer.kill()
        peer.wait()
        assert eventually(lambda: halves[0].fault() is not None)
        fault = halves[0].fault()
        assert fault is not None and (fault["kind"], fault["peer"]) == (2, 1)
        assert halves[0].counted()[1][1]["lost"] == 1
    finally:
        for link in links:
            link.stop(0.0)
