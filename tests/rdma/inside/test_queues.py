"""Rows by queue pair: each when they are few, their spread when not; one inside a node, or too many, is a failure."""

from __future__ import annotations

from tests.rdma.inside.kernels import num_queue_pairs
from tests.rdma.inside.queues import Queue, add_queues
from tests.rdma.inside.report import Report


def queues(ranks: int, qps: int) -> list[Queue]:
    """Between two nodes of `ranks`."""
    pairs = [(a, b) for a in range(2 * ranks) for b in range(2 * ranks) if a // ranks != b // ranks]
    return [Queue(a, b, 0, 17 + n, 3 + n, 100) for a, b in pairs for n in range(qps)]


def test_rdma_queues_few_are_shown_each() -> None:
    report = Report("kernels")
    add_queues(report, queues(2, 2), num_queue_pairs(2, 1, 2), 2)
    assert report.good and len(report.rows) == 1 + 16
    assert report.rows[1].what.endswith("rank 0 to 2, lane 0, queue pair 17")
    assert report.rows[1].figure == "3 writes, 100 bytes"


def test_rdma_queues_many_are_shown_by_their_spread() -> None:
    report = Report("kernels")
    add_queues(report, queues(4, 2), num_queue_pairs(4, 1, 2), 4)
    assert report.good and [row.figure for row in report.rows[1:]] == [
        "3 to 4, median 4, in all 224",
        "100 to 100, median 100, in all 6,400",
    ]


def test_rdma_queues_inside_a_node_or_one_too_many_fail() -> None:
    for found in ([*queues(2, 1), Queue(0, 1, 0, 40, 0, 0)], queues(2, 1)[1:]):
        report = Report("kernels")
        add_queues(report, found, num_queue_pairs(2, 1, 1), 2)
        assert not report.good
