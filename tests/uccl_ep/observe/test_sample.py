"""A sample has what a rank's own stats() has, and what only its segments show."""

from __future__ import annotations

import os
import struct
import time
from typing import Any

import numpy as np

from tests.uccl_ep.observe.samples import running
from tests.uccl_ep.observe.test_attach import Rank
from uccl_ep import _native
from uccl_ep._native import Phase
from uccl_ep.observe.attach import Attached
from uccl_ep.observe.sample import KERNEL_FIELDS, Ring, take


def put(segment: Any, offset: int, *values: int) -> None:
    memoryview(segment.numpy())[offset : offset + 8 * len(values)] = struct.pack(f"={len(values)}Q", *values)


def test_sample_of_a_rank_that_has_done_nothing() -> None:
    rank = Rank(1, 3)
    found = take(Attached(rank.found()))
    assert (found.rank, found.alive, found.fault, found.own_flags) == (1, True, None, None)
    assert found.rings == (Ring(0, 0), Ring(0, 0)) and not found.excluded.any()
    assert all((values == 0).all() and values.shape == (3,) for values in found.peers.values())
    assert found.workers["commands"] == 0 and found.flags.shape == found.due.shape == (7, 3)
    assert "wait_ns" not in found.peers
    assert 0 <= time.monotonic_ns() - found.time_ns < 10**11


def test_sample_reads_words_where_the_proxy_writes_them() -> None:
    rank = Rank(0, 3)
    control, rings = rank.segments["control"], rank.segments["rings"]
    attached = Attached(rank.found())
    layout = attached.layout
    put(control, layout.flag(Phase.COMBINE, 2), 2**40)
    put(control, layout.progress(Phase.DISPATCH, 1), 100 << 32 | 60)
    put(control, layout.excluded(2), 1)
    put(rings, _native.ring_bytes(64), 10)  # the second ring's tail, done and head
    put(rings, _native.ring_bytes(64) + 64, 7)
    put(rings, _native.ring_bytes(64) + 128, 15)
    found = take(attached)
    assert found.flags[Phase.COMBINE].tolist() == [0, 0, 2**40] and found.flags.sum() == 2**40
    assert found.due[Phase.DISPATCH].tolist() == [0, 100, 0] and found.arrived[Phase.DISPATCH].tolist() == [0, 60, 0]
    assert found.excluded.tolist() == [False, False, True]
    assert found.rings == (Ring(0, 0), Ring(5, 3))
    put(control, layout.flag(Phase.COMBINE, 2), 2**40 + 1)
    assert found.flags[Phase.COMBINE, 2] == 2**40  # a sample does not change


def test_sample_where_producers_count_in_a_gpu() -> None:
    rank = Rank(device="cuda")
    put(rank.segments["rings"], 0, 9)
    assert take(Attached(rank.found())).rings[0] == Ring(None, 9)


def test_sample_of_a_rank_that_has_gone_stays_as_it_was() -> None:
    rank = Rank()
    put(rank.segments["rings"], 0, 4)
    attached = Attached(rank.found())
    rank.segments.clear()
    found = take(attached)
    assert not found.alive and found.rings[0].open == 4


def test_sample_shows_a_fault() -> None:
    rank = Rank(0, 4)
    attached = Attached(rank.found())
    _native.report_lost_peer(rank.segments["control"].address, 3)
    fault = take(attached).fault
    assert fault is not None and fault["peer"] == 3


def test_sample_says_what_stats_say(variables: Any) -> None:
    variables(RANKS_PER_NODE=2, TRANSPORT="shared_memory", PROXY_THREADS=2)
    stats: dict[int, Any] = {}
    seen: dict[int, Any] = {}
    attached: dict[int, Attached] = {}

    def compare_at_rest(rank: int, buffer: Any) -> None:
        buffer.group.barrier()
        if rank in attached and rank not in stats:
            seen[rank] = take(attached[rank])
            stats[rank] = buffer.stats()
        buffer.group.barrier()

    with running(4, compare_at_rest) as found:
        attached |= {f.page.rank: Attached(f) for f in found}
        deadline = time.monotonic() + 20
        while len(stats) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert sorted(stats) == [0, 1, 2, 3] and os.getpid() == found[0].pid
    for rank, said in stats.items():
        for name in KERNEL_FIELDS:  # kernels are at rest; proxies may still hear of completions
            assert seen[rank].peers[name].tolist() == [peer[name] for peer in said["peers"]]
        writes = np.array([peer["writes"] for peer in said["peers"]])
        assert (seen[rank].peers["writes"] <= writes).all()
        assert seen[rank].own_flags[Phase.DISPATCH, rank] >= 1
        remote = [r for r in range(4) if r // 2 != rank // 2]
        assert all(seen[rank].flags[Phase.COMBINE, r] >= 1 for r in remote)
        assert seen[rank].peers["sending_ns"][remote].sum() > 0
