"""One clock from two: found from messages both ways, bounded by what they took, else by wall clocks."""

from __future__ import annotations

import random
from typing import Any

from tests.uccl_ep.recorder.records import SECOND, WALL, announcement, event, record, worker
from uccl_ep._native import EventKind
from uccl_ep.recorder.events import ARRIVE
from uccl_ep.recorder.record import Record
from uccl_ep.tools.explain.clock import Clocks

BASE = 2 * 10**15  # so that no clock is before its beginning


def exchange(
    lead_ns: int, there: list[int], back: list[int], kind: EventKind = EventKind.POPPED
) -> tuple[Record, Record]:
    """Two hosts, the second's clock ahead by `lead_ns`; messages took `there` and `back` (ns)."""
    first: list[Any] = []
    second: list[Any] = []
    for epoch, took in enumerate(there):
        at = BASE + epoch * 1000
        first.append(event(at, kind, 1, announcement(0, 0, epoch)))
        second.append(event(at + took + lead_ns, EventKind.ARRIVAL, 0, announcement(0, 0, epoch)))
    for epoch, took in enumerate(back):
        at = BASE + 10 * SECOND + epoch * 1000
        second.append(event(at + lead_ns, kind, 0, announcement(1, 0, epoch)))
        first.append(event(at + took, EventKind.ARRIVAL, 1, announcement(1, 0, epoch)))
    far = {"host": "beta", "host_id": "boot/2", "wall_s": WALL + 0.5}
    return record(0, 2, workers=[worker(*first)]), record(1, 2, workers=[worker(*second)], **far)


def test_recorder_clock_of_one_host_is_one_clock() -> None:
    clocks = Clocks([record(1), record(3)])
    assert clocks.common(record(3), 12345) == 12345
    assert [(c.offset_ns, c.error_ns) for c in clocks.hosts.values()] == [(0, 0)]
    assert clocks.wall(101 * SECOND) == WALL + 1.0


def test_recorder_clock_difference_is_within_its_bound() -> None:
    generator = random.Random(3)
    for _ in range(20):
        lead = generator.randrange(-(10**15), 10**15)
        there = [generator.randrange(2_000, 90_000) for _ in range(8)]
        back = [generator.randrange(2_000, 90_000) for _ in range(5)]
        near, far = exchange(lead, there, back, generator.choice([EventKind.POPPED, EventKind.POSTED]))
        clock = Clocks([near, far]).hosts["boot/2"]
        assert abs(clock.offset_ns + lead) <= clock.error_ns + 1
        assert clock.error_ns == (min(there) + min(back)) // 2


def test_recorder_clock_takes_posted_before_popped() -> None:
    near, far = exchange(0, [4_000], [4_000])
    late = near.workers[0].events.tolist()
    posted = [
        (ns + 3_000, int(EventKind.POSTED), peer, key, v) for ns, kind, peer, key, v in late if kind == EventKind.POPPED
    ]
    near.workers = [worker(*late, *posted)]
    assert Clocks([near, far]).hosts["boot/2"].error_ns == (1_000 + 4_000) // 2


def test_recorder_clock_ignores_messages_that_cannot_be_told_apart() -> None:
    near, far = exchange(7 * SECOND, [5_000, 9_000], [6_000])
    rows = ARRIVE << 29  # all rows of a call have one immediate
    near.workers.append(
        worker(event(1, EventKind.POPPED, 1, rows), event(2, EventKind.POPPED, 1, announcement(0, 0, 0)))
    )
    far.workers.append(worker(event(2, EventKind.ARRIVAL, 0, rows)))
    clock = Clocks([near, far]).hosts["boot/2"]
    assert clock.error_ns == (9_000 + 6_000) // 2  # the announcement that was seen twice is not used
    assert abs(clock.offset_ns + 7 * SECOND) <= clock.error_ns


def test_recorder_clock_without_messages_believes_wall_clocks() -> None:
    near, far = exchange(7 * SECOND, [5_000], [])
    far.written_ns = 107 * SECOND  # and half a second later by the wall clock
    clock = Clocks([near, far]).hosts["boot/2"]
    assert clock.error_ns == -1 and "wall" in clock.source
    assert Clocks([near, far]).common(far, 107 * SECOND) == 100 * SECOND + SECOND // 2


def test_recorder_clock_reaches_hosts_by_way_of_others() -> None:
    near, middle = exchange(SECOND, [4_000], [4_000])
    hop = announcement(1, 1, 1), announcement(2, 1, 1)
    middle.workers.append(
        worker(event(SECOND + 10, EventKind.POPPED, 2, hop[0]), event(SECOND + 6_000, EventKind.ARRIVAL, 2, hop[1]))
    )
    told = (
        event(4 * SECOND + 2_010, EventKind.ARRIVAL, 1, hop[0]),
        event(4 * SECOND + 4_000, EventKind.POPPED, 1, hop[1]),
    )
    far = record(2, 3, host="gamma", host_id="boot/3", workers=[worker(*told)])
    clock = Clocks([near, middle, far]).hosts["boot/3"]
    assert abs(clock.offset_ns + 4 * SECOND) <= clock.error_ns <= 7_000
