"""First come, first served: many queues at once, as arrays.

A queue's end times follow Lindley's recursion, end[i] = max(arrival[i], end[i - 1]) + service[i], which is a running
maximum after the services before i are subtracted. So a million messages pass a stage in a second, without a heap.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


def fifo(server: Index, arrival: Times, service: Times) -> Times:
    """When each job ends. Jobs of a server are served in order of arrival, equal arrivals in order of the array.

    Args:
        server: int64 [M], any numbers from 0. arrival, service: float64 [M], microseconds.
    """
    if not server.size:
        return np.zeros(0)
    order = _by_server(server, arrival)
    begins = _begins(server[order])
    taken = service[order]
    work = np.cumsum(taken)
    before = work - taken
    before -= before[begins][_segments(begins, len(order))]  # work of the same server that came earlier
    ends = np.empty_like(taken)
    ends[order] = _running_max(arrival[order] - before, begins) + before + taken
    return ends


def in_sequence(stream: Index, position: npt.NDArray[Any], time: Times) -> Times:
    """When each message may be used if its stream is applied in order of position: the latest of it and all before."""
    if not stream.size:
        return np.zeros(0)
    order = _by_server(stream, position.astype(np.float64))
    applied = np.empty_like(time)
    applied[order] = _running_max(time[order], _begins(stream[order]))
    return applied


def most_parked(stream: Index, position: npt.NDArray[Any], time: Times) -> tuple[int, int]:
    """(messages that came before an earlier one of their stream, the widest gap in positions that one had to bridge):
    what a receiver that rebuilds the order must be able to hold.

    Args:
        position: ascending in each stream in the order of sending; gaps are fine.
    """
    if not stream.size:
        return 0, 0
    order = _by_server(stream, position.astype(np.float64))
    begins = _begins(stream[order])
    arrived = time[order]
    applied = _running_max(arrived, begins)
    early = applied > arrived
    if not early.any():
        return 0, 0
    # How many of the stream had been applied when one arrived: the streams are put behind each other in time.
    segment = _segments(begins, len(order))
    span = float(applied.max() - min(0.0, arrived.min())) + 1.0
    applied_before = np.searchsorted(applied + segment * span, arrived + segment * span, side="left")
    gaps = np.arange(len(order)) - applied_before
    return int(early.sum()), int(gaps[early].max())


def _by_server(server: Index, key: Times) -> Index:
    """Indices by server, then by key; equal ones keep their order. One sort: servers are lifted above each other."""
    low = float(key.min())
    span = float(key.max()) - low + 1.0
    return np.argsort(server * span + (key - low), kind="stable")


def _begins(ordered: Index) -> Index:
    changed = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    return np.concatenate((np.zeros(1, np.int64), changed))


def _segments(begins: Index, length: int) -> Index:
    marks = np.zeros(length, np.int64)
    marks[begins[1:]] = 1
    found: Index = np.cumsum(marks)
    return found


def _running_max(values: Times, begins: Index) -> Times:
    """Running maximum of each segment: segments are lifted above each other, which costs 1e-5 us at worst."""
    segment = _segments(begins, len(values))
    span = float(values.max() - values.min()) + 1.0
    lifted = values + segment * span
    found: Times = np.maximum.accumulate(lifted) - segment * span
    return found
