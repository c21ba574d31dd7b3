"""Samples as they would come from a job: for tests of what is made of them. Also a real job of threads to look at."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tests.uccl_ep.ranks import case, expert_rows, low_latency
from uccl_ep import ThreadGroup, run_ranks
from uccl_ep.group.topology import Topology
from uccl_ep.observe.attach import Found, find
from uccl_ep.observe.page import Location, Page
from uccl_ep.observe.sample import KERNEL_FIELDS, PROXY_FIELDS, Ring, Sample
from uccl_ep.observe.waits import Pair
from uccl_ep.reference import RandomCase

SECOND = 1_000_000_000


def sample(rank: int, num_ranks: int, time_ns: int = SECOND, kernels: bool = True, **changed: Any) -> Sample:
    """A sample in which nothing has happened."""
    names = (*KERNEL_FIELDS, *PROXY_FIELDS) if kernels else PROXY_FIELDS
    table = np.zeros((6, num_ranks), dtype=np.int64)
    values: dict[str, Any] = {
        "rank": rank,
        "time_ns": time_ns,
        "alive": True,
        "peers": {name: np.zeros(num_ranks, dtype=np.int64) for name in names},
        "workers": {"commands": 0, "barriers": 0, "naps": 0, "deepest_reorder": 0},
        "rings": (Ring(0, 0),),
        "flags": table.copy(),
        "own_flags": table.copy(),
        "due": table.copy(),
        "arrived": table.copy(),
        "excluded": np.zeros(num_ranks, dtype=bool),
        "fault": None,
    }
    return Sample(**(values | changed))


def quiet_second(topology: Topology, kernels: bool = True) -> dict[int, Pair]:
    """Two samples of each rank, a second apart; what a test says happened is written into the second."""
    ranks = topology.num_ranks
    return {r: (sample(r, ranks, SECOND, kernels), sample(r, ranks, 2 * SECOND, kernels)) for r in range(ranks)}


def page(rank: int = 0, num_ranks: int = 2, **changed: Any) -> Page:
    """A page that fits together."""
    values: dict[str, Any] = {
        "rank": rank,
        "num_ranks": num_ranks,
        "session": 0x1234_5678_9ABC_DEF0 >> 1,
        "pid": os.getpid(),
        "proxy_pid": os.getpid(),
        "library": "0.1.0",
        "host_names": ["a", "b"],
        "machine_of": [r % 2 for r in range(num_ranks)],
        "pids": list(range(100, 100 + num_ranks)),
        "node_of": [r % 2 for r in range(num_ranks)],
        "device": "cpu",
        "family": "tcp",
        "placement": "host",
        "proxy_threads": 1,
        "num_rings": 2,
        "ring_capacity": 64,
        "max_in_flight": 8,
        "max_in_flight_bytes": 1 << 20,
        "num_channels": 64,
        "started_ns": 77,
        "segments": {name: Location(3 + i, 40 + i, 4096) for i, name in enumerate(("control", "rings", "counters"))},
    }
    return Page(**(values | changed))


@contextmanager
def running(
    num_ranks: int,
    step: Callable[[int, Any], object],
    delay_s: Callable[[int], float] = lambda rank: 0.0,
    case_of: RandomCase | None = None,
) -> Iterator[list[Found]]:
    """Ranks, as threads of this process, that dispatch and combine until the block ends; yields their pages.

    `delay_s(rank)`: how much later than the others it begins each step. `step(rank, buffer)`: called after each.
    """
    c = case_of or case(31, num_ranks=num_ranks, num_experts=2 * num_ranks, hidden=128)
    stop, ready = threading.Event(), threading.Barrier(num_ranks + 1)
    failures: list[BaseException] = []

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        rows = expert_rows(rank, c.shape)
        arguments = (c.x[rank], c.topk_idx[rank], c.shape.max_tokens, c.shape.num_experts)
        with low_latency(group, c.shape) as buffer:
            ready.wait(30)
            while not group.all_gather_object(stop.is_set())[0]:
                time.sleep(delay_s(rank))
                _, _, handle, _, _ = buffer.low_latency_dispatch(*arguments, use_fp8=False)
                buffer.low_latency_combine(rows, c.topk_idx[rank], c.topk_weights[rank], handle)
                step(rank, buffer)

    def run() -> None:
        try:
            run_ranks(num_ranks, body)
        except BaseException as failure:
            failures.append(failure)
            ready.abort()

    before = {f.page.session for f in find(os.getpid())}
    thread = threading.Thread(target=run)
    thread.start()
    try:
        ready.wait(30)
        yield [f for f in find(os.getpid()) if f.page.session not in before]
    finally:
        stop.set()
        thread.join(30)
        if failures:
            raise failures[0]


def landing_rank(topology: Topology, source: int, reader: int) -> int:
    """The rule of kernels/layout/topology.h: a reader reads at itself where ranks are cells, else on the rail."""
    there = topology.members(topology.node_of[reader])
    if source in there:
        return source
    rail = topology.members(topology.node_of[source]).index(source)
    return reader if topology.apart else there[rail % len(there)]
