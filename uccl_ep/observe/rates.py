"""What happened to a rank between two samples: per second and per peer, beside what is so now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from uccl_ep.errors import InvalidArgument
from uccl_ep.observe.sample import KERNEL_FIELDS, PROXY_FIELDS, Row, Sample

Rates = npt.NDArray[np.float64]

GAUGES = ("in_flight", "in_flight_bytes", "parked")
"""By peer, as they are now. Everything else only grows."""

_TIMES = ("wait_ns", "sending_ns", "arriving_ns")


@dataclass(frozen=True)
class RankRates:
    """One rank between two samples of it.

    Attributes:
        rank: whose. seconds: between the samples. alive: it had not ended at the second one.
        peers: by name, [num_ranks]: each counter of KERNEL_FIELDS and PROXY_FIELDS per second (float64); GAUGES as they
            were at the second sample. Times are seconds a second: 0.4 of wait_ns is 40 % of the time.
        workers: sums over the proxy's workers, per second; deepest_reorder as it is.
        waiting: commands in the rings that the proxy has not taken; None where their count is in a GPU.
        open: commands that are taken and not complete.
        last_arrival_s: seconds since anything came from a rank of another node; None: nothing has yet.
        fault: the rank's fault record, when it has one.
    """

    rank: int
    seconds: float
    alive: bool
    peers: Mapping[str, Rates | Row]
    workers: Mapping[str, float]
    waiting: int | None
    open: int
    last_arrival_s: float | None
    fault: Mapping[str, int] | None

    def total(self, name: str) -> float:
        """Sum over peers; 0 for what cannot be seen."""
        return float(self.peers[name].sum()) if name in self.peers else 0.0


def rates(before: Sample, after: Sample) -> RankRates:
    """What a rank did from one sample to the next.

    A counter that went backwards counts as zero: a reader may see a sum while one of two workers has added to it.

    Raises:
        InvalidArgument: the samples are of two ranks, or not in this order.
    """
    if before.rank != after.rank or after.time_ns <= before.time_ns:
        raise InvalidArgument(
            f"samples of ranks {before.rank} and {after.rank}, {after.time_ns - before.time_ns} ns apart: "
            "give two of one rank, the earlier first"
        )
    seconds = (after.time_ns - before.time_ns) / 1e9
    peers: dict[str, Rates | Row] = {}
    for name in (*KERNEL_FIELDS, *PROXY_FIELDS):
        if name not in after.peers or name == "last_arrival_ns":
            continue
        if name in GAUGES:
            peers[name] = np.maximum(after.peers[name], 0)
        else:
            per_second = np.maximum(after.peers[name] - before.peers[name], 0) / seconds
            peers[name] = per_second / 1e9 if name in _TIMES else per_second
    workers = {name: max(value - before.workers[name], 0) / seconds for name, value in after.workers.items()}
    workers["deepest_reorder"] = after.workers["deepest_reorder"]
    waiting = [ring.waiting for ring in after.rings if ring.waiting is not None]
    last_ns = int(after.peers["last_arrival_ns"].max(initial=0))
    return RankRates(
        rank=after.rank,
        seconds=seconds,
        alive=after.alive,
        peers=peers,
        workers=workers,
        waiting=sum(waiting) if len(waiting) == len(after.rings) else None,
        open=sum(ring.open for ring in after.rings),
        last_arrival_s=max(after.time_ns - last_ns, 0) / 1e9 if last_ns else None,
        fault=after.fault,
    )


def as_json(found: RankRates) -> dict[str, Any]:
    """The same in plain numbers; peers as one map a rank that anything is known of."""
    busy = np.zeros(len(next(iter(found.peers.values()))), dtype=bool)
    for values in found.peers.values():
        busy |= values != 0
    return {
        "rank": found.rank,
        "seconds": found.seconds,
        "alive": found.alive,
        "rings_waiting": found.waiting,
        "rings_open": found.open,
        "last_arrival_s": found.last_arrival_s,
        "fault": None if found.fault is None else dict(found.fault),
        "proxy": dict(found.workers),
        "peers": {
            int(peer): {name: values[peer].item() for name, values in found.peers.items()}
            for peer in np.flatnonzero(busy)
        },
    }
