"""One clock for the records of several hosts.

Ranks of a host read one CLOCK_MONOTONIC. Between hosts the difference is estimated from messages that both ends have
recorded: one way they seem to take (delay + difference), the other way (delay - difference); with the shortest of each
way, half the difference of the two is the clocks' and half their sum bounds the error. Where no message went both ways,
the hosts' wall clocks are believed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from uccl_ep._native import EventKind
from uccl_ep.recorder.events import EXPECT, SEQUENCE, immediate
from uccl_ep.recorder.record import Record


@dataclass(frozen=True)
class HostClock:
    """How a host's clock relates to the reference's.

    Attributes:
        host: its name. offset_ns: to be added to its times. error_ns: how far off that may be; -1: not known.
        source: how that was found, in words.
    """

    host: str
    offset_ns: int
    error_ns: int
    source: str


class Clocks:
    """The clocks of all hosts that records are of. The reference is the host of the first record."""

    def __init__(self, records: Sequence[Record]) -> None:
        by_host: dict[str, list[Record]] = {}
        for record in records:
            by_host.setdefault(record.host_id, []).append(record)
        self._names = {host: group[0].host for host, group in by_host.items()}
        reference = records[0]
        self._reference = reference
        self.hosts = {reference.host_id: HostClock(reference.host, 0, 0, "the reference")}
        traffic = {(a, b): _shortest(by_host[a], by_host[b]) for a in by_host for b in by_host if a != b}
        self._spread(traffic)
        for host, group in by_host.items():
            if host not in self.hosts:
                self.hosts[host] = _by_wall(reference, group[0])

    def _spread(self, shortest: dict[tuple[str, str], int | None]) -> None:
        """From hosts that are known to those that have exchanged messages with them."""
        frontier = list(self.hosts)
        while frontier:
            near = frontier.pop(0)
            for far in [b for a, b in shortest if a == near and b not in self.hosts]:
                there, back = shortest[near, far], shortest[far, near]
                if there is None or back is None:
                    continue
                known = self.hosts[near]
                # What is recorded `there` later than here is the far clock's lead plus the delay.
                offset = known.offset_ns - (there - back) // 2
                error = known.error_ns + max(0, there + back) // 2
                self.hosts[far] = HostClock(self._names[far], offset, error, "messages both ways")
                frontier.append(far)

    def common(self, record: Record, ns: int) -> int:
        """A moment of a record's clock on the reference's, in ns."""
        return ns + self.hosts[record.host_id].offset_ns

    def wall(self, common_ns: int) -> float:
        """Seconds since 1970 of a moment of the reference's clock."""
        return self._reference.wall(common_ns)


def _by_wall(reference: Record, record: Record) -> HostClock:
    """The difference of two monotonic clocks if both hosts' wall clocks are right."""
    seconds = record.wall_s - reference.wall_s
    offset = reference.written_ns + round(seconds * 1e9) - record.written_ns
    return HostClock(record.host, offset, -1, "the hosts' wall clocks: no message went both ways")


def _shortest(senders: Sequence[Record], receivers: Sequence[Record]) -> int | None:
    """The least of (recorded arrival - recorded departure) over messages from one host to another, in ns."""
    least = None
    for sender in senders:
        departures = _sent(sender)
        for receiver in receivers:
            for message, arrived_ns in _received(receiver, sender.rank).items():
                left_ns = departures.get((receiver.rank, message))
                if left_ns is not None and (least is None or arrived_ns - left_ns < least):
                    least = arrived_ns - left_ns
    return least


def _sent(record: Record) -> dict[tuple[int, int], int]:
    """When each message left that can be told from every other: by (to, immediate). Posted where that was recorded."""
    popped, posted = _Unique(), _Unique()
    for worker in record.workers:
        events = worker.events
        for kind, unique in ((EventKind.POPPED, popped), (EventKind.POSTED, posted)):
            chosen = events[events["kind"] == kind]
            for ns, _, peer, key, _ in chosen.tolist():
                unique.add((peer, key & 0xFFFFFFFF), ns)
    return {**popped.times(), **posted.times()}


def _received(record: Record, source: int) -> dict[int, int]:
    unique = _Unique()
    for worker in record.workers:
        events = worker.events
        chosen = events[(events["kind"] == EventKind.ARRIVAL) & (events["peer"] == np.uint32(source))]
        for ns, _, _, key, _ in chosen.tolist():
            unique.add((source, key), ns)
    return {message: ns for (_, message), ns in unique.times().items()}


class _Unique:
    """Times of messages that occur once; rows of one call all have the same immediate, and are no use."""

    def __init__(self) -> None:
        self._times: dict[tuple[int, int], int] = {}
        self._again: set[tuple[int, int]] = set()

    def add(self, message: tuple[int, int], ns: int) -> None:
        if immediate(message[1])[0] not in (EXPECT, SEQUENCE):
            return
        if message in self._times:
            self._again.add(message)
        self._times[message] = ns

    def times(self) -> dict[tuple[int, int], int]:
        return {message: ns for message, ns in self._times.items() if message not in self._again}
