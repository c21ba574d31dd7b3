"""Writes and bytes by queue pair, as rows: each where they are few, else their spread. All are in the step's JSON."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tests.rdma.inside.report import Report

_MOST_ROWS = 16


@dataclass(frozen=True)
class Queue:
    """What one queue pair has carried.

    Attributes:
        source: the rank it belongs to. to: the rank it reaches. lane: the proxy thread. number: `rdma resource` has it.
    """

    source: int
    to: int
    lane: int
    number: int
    writes: int
    bytes: int

    @property
    def text(self) -> str:
        """As one row's figure."""
        return f"{self.writes:,} writes, {self.bytes:,} bytes"


def add_queues(report: Report, queues: Sequence[Queue], expected: int, ranks_per_node: int) -> None:
    """Rows of what each carried. Not good: another number of them than `expected`, or one inside a node."""
    inside = [q for q in queues if q.source // ranks_per_node == q.to // ranks_per_node]
    figure = f"{len(queues):,}, {len(inside)} of them between ranks of a node"
    report.add("  queue pairs", figure, len(queues) == expected and not inside)
    if len(queues) <= _MOST_ROWS:
        for q in sorted(queues, key=lambda q: (q.source, q.to, q.lane, q.number)):
            report.add(f"    rank {q.source} to {q.to}, lane {q.lane}, queue pair {q.number}", q.text)
        return
    for name, values in (("writes", [q.writes for q in queues]), ("bytes", [q.bytes for q in queues])):
        spread = f"{min(values):,} to {max(values):,}, median {statistics.median(values):,.0f}, in all {sum(values):,}"
        report.add(f"    {name} of each", spread)
