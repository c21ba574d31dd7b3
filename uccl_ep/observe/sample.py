"""What the counters of one rank say at one moment. Numbers are whole; together they are not one instant."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from uccl_ep import _native
from uccl_ep._native import Phase
from uccl_ep.observe.attach import Attached
from uccl_ep.recorder.durations import WORDS

Row = npt.NDArray[np.int64]

KERNEL_FIELDS = tuple(stat.name.lower() for stat in _native.PeerStat)
"""Of kernels, by peer (kernels/layout/rank_context.h)."""

PROXY_FIELDS = (
    "writes",
    "write_bytes",
    "arrivals",
    "stalls",
    "in_flight",
    "in_flight_bytes",
    "last_arrival_ns",
    "sending_ns",
    "arriving_ns",
    "parked",
)
"""Of the proxy, by peer (proxy/engine/counters.h); in_flight, in_flight_bytes and parked are as they are now."""


_RING_OFFSETS = (_native.RING_DONE_OFFSET, _native.RING_TAIL_OFFSET, _native.RING_HEAD_OFFSET)


@dataclass(frozen=True)
class Ring:
    """A command ring now.

    Attributes:
        waiting: commands that kernels have queued and the proxy has not taken; None where their count is in a GPU.
        open: commands that are taken and not complete at their receiver.
    """

    waiting: int | None
    open: int


@dataclass(frozen=True)
class Sample:
    """One rank at one moment.

    Attributes:
        rank: whose. time_ns: CLOCK_MONOTONIC. alive: it had not ended.
        peers: PROXY_FIELDS and, where kernels run on the CPU, KERNEL_FIELDS; each int64 [num_ranks].
        workers: sums over the proxy's workers. rings: by number.
        flags: int64 [6, num_ranks], by phase: last call of each rank of other nodes that has wholly arrived here.
        own_flags: the same for what this rank itself and its node put into its memory; None where rows are in a GPU.
        due, arrived: int64 [6, num_ranks]: writes of the call under way that its sender has announced (0: it has not)
            and that have come. In SPARE: 1 once this rank's proxy is in a barrier, whether it has heard of the rank.
        excluded: bool [num_ranks]: peers that this rank leaves out (masked).
        fault: the rank's fault record, when it has one.
        durations: int64 [CALLS, WORDS] of recorder/durations.py; None: the rank keeps none.
    """

    rank: int
    time_ns: int
    alive: bool
    peers: Mapping[str, Row]
    workers: Mapping[str, int]
    rings: tuple[Ring, ...]
    flags: Row
    own_flags: Row | None
    due: Row
    arrived: Row
    excluded: npt.NDArray[np.bool_]
    fault: Mapping[str, int] | None
    durations: Row | None = None


def take(rank: Attached) -> Sample:
    """Reads a rank's counters. Never fails for a rank that has ended: it is then not alive, and stays as it was."""
    page, layout, ranks = rank.page, rank.layout, rank.page.num_ranks
    alive = rank.alive
    workers, peers = _native.read_counters(rank.counters.ctypes.data, page.proxy_threads, ranks)
    columns: dict[str, Row] = {
        name: np.array([peer[name] for peer in peers], dtype=np.uint64).view(np.int64) for name in PROXY_FIELDS
    }
    if rank.stats is not None:
        table = rank.stats.view(np.int64).reshape(ranks, _native.PEER_STATS).copy()
        columns |= {name: table[:, i] for i, name in enumerate(KERNEL_FIELDS)}
    progress = rank.control[layout.progress(0, 0) // 8 :][: len(Phase) * ranks].reshape(len(Phase), ranks).copy()
    return Sample(
        rank=page.rank,
        time_ns=time.monotonic_ns(),
        alive=alive,
        peers=columns,
        workers={name: sum(worker[name] for worker in workers) for name in workers[0]},
        rings=_rings(rank),
        flags=_table(rank.control[layout.flag(0, 0) // 8 :], ranks),
        own_flags=None if rank.data is None else _table(rank.data[rank.signals.flag(0, 0) // 8 :], ranks),
        due=(progress >> np.uint64(32)).astype(np.int64),
        arrived=(progress & np.uint64(0xFFFFFFFF)).astype(np.int64),
        excluded=rank.control[layout.excluded(0) // 8 :][:ranks] != 0,
        fault=_native.read_fault(rank.control.ctypes.data),
        durations=None if rank.durations is None else rank.durations.view(np.int64).reshape(-1, WORDS).copy(),
    )


def _table(words: npt.NDArray[np.uint64], ranks: int) -> Row:
    table: Row = words[: len(Phase) * ranks].view(np.int64).reshape(len(Phase), ranks).copy()
    return table


def _rings(rank: Attached) -> tuple[Ring, ...]:
    stride = _native.ring_bytes(rank.page.ring_capacity) // 8
    rings = []
    for i in range(rank.page.num_rings):
        # In this order, so that no difference is below zero.
        done, tail, head = (int(rank.rings[i * stride + offset // 8]) for offset in _RING_OFFSETS)
        rings.append(Ring(max(head - tail, 0) if rank.page.device == "cpu" else None, tail - done))
    return tuple(rings)
