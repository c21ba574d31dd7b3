"""Step: loss and delay on the cable; the same rows, later."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from tests.rdma.inside.context import Context, nodes, sh
from tests.rdma.inside.kernels import MODES, add
from tests.rdma.inside.report import Report

_HARMS = ("delay 2ms", "loss 1%")


def run(context: Context, report: Report) -> None:
    for harm in _HARMS:
        for mode in MODES:
            before = _retransmitted()
            with harmed(harm):
                done = nodes(context, mode=mode, ranks=2, rounds=4, seed=9)
            again = _retransmitted() - before
            add(report, f"{harm}, {mode.replace('_', ' ')}", done)
            report.add("  packets sent again", f"{again:,}", again > 0 or "loss" not in harm)


@contextmanager
def harmed(harm: str) -> Iterator[None]:
    """A netem discipline on both ends of the cable."""
    sh("modprobe sch_netem")
    try:
        for device in ("v0", "v1"):
            sh(f"tc qdisc add dev {device} root netem limit 10000 {harm}")
        yield
    finally:
        for device in ("v0", "v1"):
            sh(f"tc qdisc del dev {device} root || true")


def _retransmitted() -> int:
    """What soft-RoCE has counted of timeouts and repeats since the start, on both devices."""
    names = ("completer_retry_err", "retry_rnr_exceeded_err", "send_rnr_err", "retry_exceeded_err", "rcvd_seq_err")
    total = 0
    for link in json.loads(sh("rdma -j statistic show")):
        total += sum(
            int(link.get(name, 0)) for name in (*names, "rcvd_rnr_err", "duplicate_request", "out_of_seq_request")
        )
    return total
