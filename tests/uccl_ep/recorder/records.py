"""Records of ranks that never were: each test says what differs from a quiet pair of hosts."""

from __future__ import annotations

from typing import Any

import numpy as np

from uccl_ep._native import EventKind
from uccl_ep.recorder.events import DTYPE, EXPECT
from uccl_ep.recorder.record import Call, Record, WorkerEvents

SECOND = 1_000_000_000
WALL = 1_800_000_000.0
NONE = 0xFFFFFFFF
TIMEOUT, PEER_LOST = 1, 2
DISPATCH_RECEIVE = 3  # WaitPhase

Event = tuple[int, int, int, int, int]


def word(kind: int, source: int, key: int) -> int:
    """An immediate."""
    return kind << 29 | source << 17 | key


def announcement(source: int, phase: int, epoch: int) -> int:
    """The immediate of a call's announcement."""
    return word(EXPECT, source, phase << 14 | epoch)


def event(ns: int, kind: EventKind, peer: int = NONE, key: int = 0, value: int = 0) -> Event:
    """One event."""
    return ns, int(kind), peer, key, value


def worker(*events: Event, traced: bool = False) -> WorkerEvents:
    """What a proxy worker has recorded."""
    return WorkerEvents(0, len(events), traced, np.array(list(events), DTYPE).tobytes())


def fault(kind: int, peer: int, phase: int = DISPATCH_RECEIVE, waited_s: float = 2.0) -> dict[str, int]:
    """A fault record."""
    return {
        "kind": kind,
        "phase": phase,
        "peer": peer,
        "detail_kind": 0,
        "detail": 0,
        "expected": 5,
        "seen": 4,
        "last_seen_ns": 0,
        "waited_ns": int(waited_s * SECOND),
    }


def record(rank: int, num_ranks: int = 4, **changes: Any) -> Record:
    """A rank of a group on one host, written at 100 s of its clock."""
    values: dict[str, Any] = {
        "rank": rank,
        "num_ranks": num_ranks,
        "session": 0x1234ABCD,
        "host": "alpha",
        "host_id": "boot/1",
        "pid": 1000 + rank,
        "reason": "the program asked for it",
        "error": "",
        "blamed": -1,
        "written_ns": 100 * SECOND,
        "wall_s": WALL,
        "node_of": list(range(num_ranks)),
        "absent": [],
        "hostnames": ["alpha"] * num_ranks,
        "family": "tcp",
        "device": "cpu",
        "masked": [],
        "fault": {},
        "last_kernel": "",
        "progress": [[[0, 0] for _ in range(num_ranks)] for _ in range(4)],
        "flags": [[0] * num_ranks for _ in range(4)],
        "counters": [{"commands": 0}],
        "peers": [{"last_arrival_ns": 0} for _ in range(num_ranks)],
        "kernels": [[0] * 5 for _ in range(num_ranks)],
        "settings": {"timeout_s": 2.0},
        "versions": {"python": "3"},
        "workers": [worker()],
    }
    return Record(**{**values, **changes})


def timed_out(rank: int, peer: int, at_s: float = 99.5, **changes: Any) -> Record:
    """A rank whose dispatch waited 2 s for another."""
    begin = int((at_s - 2.0) * SECOND)
    values: dict[str, Any] = {
        "error": f"PeerTimeout: rank {peer} timed out",
        "blamed": peer,
        "reason": "a call raised PeerTimeout",
        "fault": fault(TIMEOUT, peer),
        "calls": [Call("low_latency_dispatch", 7, begin, shapes=[[16, 256]])],
        "workers": [worker(event(int(at_s * SECOND), EventKind.FAULT, peer, DISPATCH_RECEIVE << 32 | TIMEOUT))],
    }
    return record(rank, **{**values, **changes})


def bereaved(rank: int, peer: int, at_s: float = 99.0, **changes: Any) -> Record:
    """A rank that has lost another."""
    values: dict[str, Any] = {
        "error": f"PeerLost: rank {peer} lost",
        "blamed": peer,
        "fault": fault(PEER_LOST, peer, 0, 0.0),
        "workers": [worker(event(int(at_s * SECOND), EventKind.PARTED, peer, 1, 104))],
        "calls": [Call("combine", 3, int((at_s - 0.25) * SECOND))],
    }
    return record(rank, **{**values, **changes})
