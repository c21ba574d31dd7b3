"""Steps: real kernels and engines on several ranks as two nodes, every row compared; then with thousands of queue
pairs."""

from __future__ import annotations

from typing import Any

from tests.rdma.inside.context import Context, QueuePairs, nodes
from tests.rdma.inside.queues import Queue, add_queues
from tests.rdma.inside.report import Report

MODES = ("low_latency", "throughput")


def run(context: Context, report: Report) -> None:
    for mode in MODES:
        for ranks in (2, 4):
            with QueuePairs.watched() as watch:
                done = nodes(context, mode=mode, ranks=ranks, rounds=12 // ranks, qps=2, seed=ranks)
            add(report, f"{mode.replace('_', ' ')}, {2 * ranks} ranks as 2 nodes", done)
            wanted = num_queue_pairs(ranks, 1, 2)
            figure = f"{watch.most:,}, and {wanted:,} is what ranks of different nodes need"
            report.add("  most queue pairs open at once", figure, watch.most <= wanted)
            add_queues(report, [Queue(*q) for q in done["queues"]], wanted, ranks)


def add(report: Report, what: str, done: Any) -> None:
    """A row for what rdma_nodes reports."""
    report.rows_compared += done["rows"]
    figure = f"{done['rows']:,} rows right, {done['writes']:,} writes, {done['bytes']:,} bytes, {done['seconds']:.1f} s"
    report.add(what, figure, done["rows"] > 0 and done["writes"] > 0 and done["stale"] == 0)


def num_queue_pairs(ranks: int, lanes: int, qps: int) -> int:
    """Of two nodes with so many ranks each: none inside a node."""
    return 2 * ranks * ranks * lanes * qps


def run_many_queue_pairs(context: Context, report: Report) -> None:
    with QueuePairs.watched() as watch:
        done = nodes(context, mode="low_latency", ranks=2, rounds=2, qps=32, lanes=8, tokens=16)
    add(report, "8 lanes x 32 queue pairs a peer", done)
    wanted = num_queue_pairs(2, 8, 32)
    report.add("queue pairs open at once", f"{watch.most:,}", 2000 <= watch.most <= wanted)
    add_queues(report, [Queue(*q) for q in done["queues"]], wanted, 2)
