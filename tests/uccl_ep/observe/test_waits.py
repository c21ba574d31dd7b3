"""The wait matrix: who is late, which link is slow, and that the two are told apart; then on a real job."""

from __future__ import annotations

import dataclasses
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.uccl_ep.observe.samples import SECOND, landing_rank, quiet_second, running, sample
from tests.uccl_ep.ranks import case, expert_rows, low_latency
from uccl_ep import InvalidArgument, ThreadGroup, run_ranks
from uccl_ep._native import Phase
from uccl_ep.group.topology import Topology, split_into_nodes
from uccl_ep.observe.waits import LATE, SLOW_LINK, Pair, Waits, _View, as_json, find_waits, story
from uccl_ep.observe.watch import Watcher

TWO_NODES = Topology((0, 0, 1, 1))
FOUR_NODES = Topology((0, 1, 2, 3))
MS = 1_000_000


def wait(pairs: dict[int, Pair], rank: int, peer: int, ms: float) -> None:
    pairs[rank][1].peers["wait_ns"][peer] += int(ms * MS)


def calls(pairs: dict[int, Pair], topology: Topology, rank: int, number: int, phase: int = Phase.DISPATCH) -> None:
    """All who can see it see that a rank has made `number` calls, at both ends of the interval."""
    for at, pair in pairs.items():
        for end in pair:
            if topology.node_of[at] != topology.node_of[rank]:
                end.flags[phase, rank] = number
            elif end.own_flags is not None and (at == rank) != (phase == Phase.COMBINE):
                end.own_flags[phase, rank] = number


def first(waits: Waits) -> tuple[int, str, int | None]:
    s = waits.suspects[0]
    return s.rank, s.kind, s.peer


@pytest.mark.parametrize("topology", [TWO_NODES, FOUR_NODES, Topology((0, 0, 0, 0))])
def test_waits_nobody_is_named_in_a_quiet_second(topology: Topology) -> None:
    found = find_waits(quiet_second(topology), topology)
    assert found.suspects == () and found.waited.sum() == 0 and story(found.suspects) == ""


@pytest.mark.parametrize("topology", [TWO_NODES, FOUR_NODES, Topology((0, 0, 0, 0))])
@pytest.mark.parametrize("slow", [0, 2])
def test_waits_for_a_late_rank(topology: Topology, slow: int) -> None:
    pairs = quiet_second(topology)
    for r in {0, 1, 2, 3} - {slow}:
        wait(pairs, r, slow, 300)
        wait(pairs, r, (slow + 1) % 4, 12)
        pairs[r][1].peers["arriving_ns"][slow] = 4 * MS  # its bytes come fast once they come
    found = find_waits(pairs, topology)
    assert first(found) == (slow, LATE, None)
    assert found.suspects[0].seconds == pytest.approx(0.3, abs=0.01)
    assert [s.rank for s in found.suspects] == [slow]
    assert "3 of 3 ranks waited for it" in found.suspects[0].evidence and story(found.suspects).startswith("rank")
    remote = [r for r in range(4) if topology.node_of[r] != topology.node_of[slow]]
    for r in remote:
        assert found.link[found.row(r), slow] == pytest.approx(0.004)
        assert found.late[found.row(r), slow] == pytest.approx(0.296)


def test_waits_who_is_late_for_another_is_not_the_slow_rank() -> None:
    """0 and 1 wait for 3, which had waited for 2 itself."""
    pairs = quiet_second(TWO_NODES)
    for r in (0, 1, 3):
        wait(pairs, r, 2, 400)
    for r in (0, 1):
        wait(pairs, r, 3, 390)
    found = find_waits(pairs, TWO_NODES)
    assert [s.rank for s in found.suspects] == [2]


def test_waits_that_only_one_rank_sees_are_followed_to_their_end() -> None:
    """0 and 1 wait for 3 alone; 3 waits for 2."""
    pairs = quiet_second(TWO_NODES)
    wait(pairs, 3, 2, 400)
    for r in (0, 1):
        wait(pairs, r, 3, 390)
    assert [s.rank for s in find_waits(pairs, TWO_NODES).suspects] == [2]


def test_waits_on_a_busy_machine_name_who_stands_out() -> None:
    """Everybody waits for everybody; numbers of a crowded machine on which rank 2 was delayed."""
    pairs = quiet_second(TWO_NODES)
    for r, row in enumerate([(0, 373, 608, 184), (57, 0, 624, 158), (170, 576, 0, 150), (163, 552, 387, 0)]):
        for peer, ms in enumerate(row):
            wait(pairs, r, peer, ms)
    assert [s.rank for s in find_waits(pairs, TWO_NODES).suspects] == [2]
    pairs = quiet_second(TWO_NODES)
    for r in range(4):
        for peer in range(4):
            wait(pairs, r, peer, 300 if peer != r else 0)
    assert find_waits(pairs, TWO_NODES).suspects == ()  # all alike


def test_waits_for_all_ranks_of_a_slow_host() -> None:
    topology = Topology((0, 0, 0, 0, 1, 1, 1, 1))
    pairs = quiet_second(topology)
    for r in range(4):
        for peer in range(4, 8):
            wait(pairs, r, peer, 400)
    assert sorted(s.rank for s in find_waits(pairs, topology).suspects) == [4, 5, 6, 7]
    del pairs[1], pairs[2], pairs[3]  # of the four that wait, one is seen
    assert sorted(s.rank for s in find_waits(pairs, topology).suspects) == [4, 5, 6, 7]


@pytest.mark.parametrize("evidence", ["arriving_ns", "sending_ns"])
def test_waits_for_a_slow_link(evidence: str) -> None:
    """Rows of 2 come in at 0 for both ranks of its node (TWO_NODES); one end alone tells of it."""
    pairs = quiet_second(TWO_NODES)
    for r in (0, 1):
        wait(pairs, r, 2, 500)
    if evidence == "arriving_ns":
        pairs[0][1].peers["arriving_ns"][2] = 480 * MS
    else:
        pairs[2][1].peers["sending_ns"][0] = 480 * MS
    found = find_waits(pairs, TWO_NODES)
    assert first(found) == (2, SLOW_LINK, 0) and len(found.suspects) == 1
    assert found.suspects[0].seconds == pytest.approx(0.48)
    assert found.late[:, 2].max() == pytest.approx(0.02)
    assert story(found.suspects).startswith("the link from rank 2 to rank 0 is slow")


def test_waits_for_the_half_that_is_seen_here() -> None:
    """Only ranks 0 and 1 run on this host: 2 is on another, where nothing can be read."""
    pairs = {r: pair for r, pair in quiet_second(TWO_NODES).items() if r < 2}
    for r in (0, 1):
        wait(pairs, r, 2, 500)
    assert first(find_waits(pairs, TWO_NODES)) == (2, LATE, None)
    assert "another host" in find_waits(pairs, TWO_NODES).suspects[0].evidence
    pairs[0][1].peers["arriving_ns"][2] = 480 * MS
    assert first(find_waits(pairs, TWO_NODES)) == (2, SLOW_LINK, 0)


def test_waits_for_links_that_are_all_alike_are_nobodys_fault() -> None:
    pairs = quiet_second(FOUR_NODES)
    for r in range(4):
        for peer in range(4):
            wait(pairs, r, peer, 400)
            pairs[r][1].peers["arriving_ns"][peer] = (390 + r) * MS
    found = find_waits(pairs, FOUR_NODES)
    assert found.suspects == () and found.link.sum() > 20 * found.late.sum()


@pytest.mark.parametrize("direction", ["out of", "into"])
def test_waits_for_all_links_of_a_rank_are_that_ranks(direction: str) -> None:
    pairs = quiet_second(FOUR_NODES)
    for other in (0, 1, 3):
        source, reader = (2, other) if direction == "out of" else (other, 2)
        wait(pairs, reader, source, 300 + other)
        pairs[source][1].peers["sending_ns"][reader] = 290 * MS
    found = find_waits(pairs, FOUR_NODES)
    assert first(found) == (2, SLOW_LINK, None) and len(found.suspects) == 1
    assert "0, 1, 3" in found.suspects[0].evidence


def test_waits_that_no_kernel_has_ended_yet_are_seen_by_calls() -> None:
    """A hang: everybody has dispatched for the 42nd time but rank 1, and nobody's counter moves."""
    for phase in (Phase.DISPATCH, Phase.COMBINE, Phase.COUNTS):
        for topology in (TWO_NODES, FOUR_NODES):
            pairs = quiet_second(topology)
            for r in range(4):
                calls(pairs, topology, r, 41 if r == 1 else 42, phase)
            found = find_waits(pairs, topology)
            assert first(found) == (1, LATE, None) and found.suspects[0].seconds == pytest.approx(1.0)
            assert len(found.suspects) == 1
            pairs[0][1].excluded[1] = True  # rank 0 has masked it: it does not wait
            assert find_waits(pairs, topology).waited[0, 1] == 0
            calls(pairs, topology, 1, 42, phase)
            assert find_waits(pairs, topology).suspects == ()


def test_waits_on_a_gpu_are_seen_by_calls_between_nodes() -> None:
    pairs = quiet_second(FOUR_NODES, kernels=False)
    pairs = {r: tuple(_without_rows(end) for end in pair) for r, pair in pairs.items()}  # type: ignore[misc]
    for r in range(4):
        calls(pairs, FOUR_NODES, r, 6 if r == 3 else 7)
    assert first(find_waits(pairs, FOUR_NODES)) == (3, LATE, None)


def combines(pairs: dict[int, Pair], topology: Topology, direct: int, reduced: int) -> None:
    """Every rank has made so many of each form; those reduced in the node tell hosts and their owners only."""
    for at, pair in pairs.items():
        hosts = [topology.members(n)[topology.members(topology.node_of[at]).index(at)] for n in (0, 1)]
        for end in pair:
            for rank in range(topology.num_ranks):
                if topology.node_of[at] == topology.node_of[rank]:
                    end.own_flags[Phase.COMBINE, rank] = direct + reduced  # type: ignore[index]
                else:
                    end.flags[Phase.COMBINE, rank] = direct
                    end.flags[[Phase.WEIGHTS, Phase.REDUCED], rank] = reduced if rank in hosts else 0


def test_waits_for_sums_of_a_node() -> None:
    pairs = quiet_second(TWO_NODES)
    combines(pairs, TWO_NODES, direct=3, reduced=5)
    found = find_waits(pairs, TWO_NODES)
    assert found.suspects == () and found.waited.sum() == 0  # nobody is behind who has nothing to send
    for end in pairs[0]:
        end.flags[Phase.REDUCED, 2] = 4
    found = find_waits(pairs, TWO_NODES)
    assert first(found) == (2, LATE, None) and found.waited[0].tolist() == [0, 0, 1, 0]
    for end in pairs[0]:
        end.flags[Phase.REDUCED, 2], end.flags[Phase.COMBINE, 3] = (
            5,
            2,
        )  # now a direct call of a rank that never sums for rank 0
    assert find_waits(pairs, TWO_NODES).waited[0].tolist() == [0, 0, 0, 1]


def _without_rows(end: Any) -> Any:
    return type(end)(**{**vars(end), "own_flags": None})


def test_waits_in_a_barrier_between_nodes() -> None:
    pairs = quiet_second(FOUR_NODES)
    for r in (0, 1, 3):
        for end in pairs[r]:
            end.due[Phase.SPARE, [0, 1, 2, 3]] = 1
            end.arrived[Phase.SPARE, [0, 1, 3]] = 1
    found = find_waits(pairs, FOUR_NODES)
    assert first(found) == (2, LATE, None) and len(found.suspects) == 1
    for r in (0, 1, 3):  # by the end it was another barrier
        pairs[r][1].workers["barriers"] = 1  # type: ignore[index]
    assert find_waits(pairs, FOUR_NODES).suspects == ()


@pytest.mark.parametrize("how", ["announced", "posted"])
def test_waits_for_bytes_that_are_stuck_on_their_way(how: str) -> None:
    pairs = quiet_second(FOUR_NODES)
    for r in range(4):
        calls(pairs, FOUR_NODES, r, 7)
    for end in pairs[0]:  # of call 7 of rank 2, 60 of 100 writes have come to rank 0
        end.flags[Phase.DISPATCH, 2] = 6
        if how == "announced":
            end.due[Phase.DISPATCH, 2], end.arrived[Phase.DISPATCH, 2] = 100, 60
    if how == "posted":
        for end in pairs[2]:
            end.peers["in_flight"][0] = 40
    found = find_waits(pairs, FOUR_NODES)
    assert first(found) == (2, SLOW_LINK, 0) and found.suspects[0].seconds == pytest.approx(1.0)


def test_waits_longer_than_the_interval_count_as_the_interval() -> None:
    pairs = quiet_second(TWO_NODES)
    for r in (0, 1, 3):
        wait(pairs, r, 2, 9000)
    found = find_waits(pairs, TWO_NODES)
    assert found.waited.max() == found.seconds == 1.0


def test_waits_below_a_twentieth_are_nobodys_fault() -> None:
    pairs = quiet_second(TWO_NODES)
    for r in (0, 1, 3):
        wait(pairs, r, 2, 45)
    assert find_waits(pairs, TWO_NODES).suspects == ()


def test_waits_leave_absent_ranks_out() -> None:
    topology = Topology((0, 0, 1, 1)).without({1})
    pairs = {r: pair for r, pair in quiet_second(topology).items() if r != 1}
    for r in (0, 2):
        wait(pairs, r, 3, 200)
    found = find_waits(pairs, topology)
    assert found.ranks == (0, 2, 3) and first(found) == (3, LATE, None)
    plain = as_json(found)
    assert plain["ranks"] == [0, 2, 3] and plain["suspects"][0]["rank"] == 3 and len(plain["late_s"][0]) == 4


def test_waits_read_rows_where_the_topology_says() -> None:
    generator = random.Random(9)
    for _ in range(60):
        ranks, nodes = generator.randint(1, 20), generator.randint(1, 6)
        topology = split_into_nodes([str(generator.randrange(nodes)) for _ in range(ranks)], 0, 64)
        absent = {r for r in range(1, ranks) if generator.random() < 0.2}
        topology = dataclasses.replace(topology, apart=generator.random() < 0.3).without(absent)
        present = [r for r in range(ranks) if r not in absent]
        view = _View({r: pair for r, pair in quiet_second(topology).items() if r in present}, topology)
        for reader in present:
            assert view.read_at(reader)[present].tolist() == [landing_rank(topology, s, reader) for s in present]
            elsewhere = {landing_rank(topology, reader, r) for r in present if view.node_of[r] != view.node_of[reader]}
            assert set(np.flatnonzero(view._sums_for(reader))) == elsewhere


def test_waits_of_a_host_among_thousands_of_ranks_take_no_time() -> None:
    """Eight ranks of 4,096 are here, on a machine with 8 each."""
    topology = Topology(tuple(r // 8 for r in range(4096)))
    pairs = {r: (sample(r, 4096), sample(r, 4096, 2 * SECOND)) for r in range(8)}
    for r in range(8):
        wait(pairs, r, 3000, 200)
    begin = time.process_time()
    found = find_waits(pairs, topology)
    assert time.process_time() - begin < 5  # it is some 0.1 s; what is quadratic takes minutes
    assert first(found) == (3000, LATE, None) and len(found.suspects) == 1


def test_waits_refuse_samples_out_of_order() -> None:
    pairs = quiet_second(TWO_NODES)
    with pytest.raises(InvalidArgument, match="the earlier first"):
        find_waits({}, TWO_NODES)
    pairs[1] = (pairs[1][1], pairs[1][0])
    with pytest.raises(InvalidArgument, match="the earlier first"):
        find_waits(pairs, TWO_NODES)


def first_job(session: int, is_it: Callable[[Waits], bool], interval_s: float) -> Waits:
    """The first view of a session that is what is looked for; else the last before a deadline."""
    watcher = Watcher(os.getpid())
    watcher.step()
    for _ in range(20):
        time.sleep(interval_s)
        (waits,) = [job.waits for job in watcher.step() if job.page.session == session]
        if is_it(waits):
            break
    return waits


@pytest.mark.parametrize("slow", [1, 2])
def test_waits_name_the_rank_that_is_late_in_a_real_job(variables: Any, slow: int) -> None:
    """Four ranks on two nodes; one begins each step 80 ms after the others. Everything else is real."""
    variables(RANKS_PER_NODE=2, TRANSPORT="shared_memory")
    others = [r for r in range(4) if r != slow]

    def named(waits: Waits) -> bool:  # on a busy machine not in every view
        if not waits.suspects or first(waits) != (slow, LATE, None):
            return False
        return bool(waits.late.sum(axis=0).argmax() == slow and (waits.late > waits.link)[others, slow].all())

    with running(4, lambda rank, buffer: None, lambda rank: 0.08 if rank == slow else 0.0) as found:
        waits = first_job(found[0].page.session, named, 0.8)
    assert waits.ranks == (0, 1, 2, 3) and named(waits), waits
    assert waits.waited.max() <= waits.seconds


def test_waits_see_a_rank_that_does_not_come_at_all(variables: Any) -> None:
    """Rank 3 stays away until it has been seen to: nobody's counters move."""
    variables(RANKS_PER_NODE=2, TRANSPORT="shared_memory")
    wake = threading.Event()

    def named(waits: Waits) -> bool:
        return bool(waits.suspects) and waits.suspects[0].seconds > 0.99 * waits.seconds

    def stay_away(rank: int) -> float:
        if rank == 3:
            wake.wait(25)
        return 0.0

    with running(4, lambda rank, buffer: None, stay_away) as found:
        try:
            waits = first_job(found[0].page.session, named, 0.1)
        finally:
            wake.set()
    assert named(waits) and first(waits) == (3, LATE, None), waits
    assert (waits.waited[:3, 3] == waits.seconds).all() and waits.waited[3].max() == 0


def test_waits_for_bytes_are_no_lateness_in_a_real_job(variables: Any) -> None:
    """Two ranks on two nodes that do nothing but send 2 MiB a step: what they wait for is under way."""
    variables(RANKS_PER_NODE=1, TRANSPORT="tcp")
    c = case(34, num_ranks=2, num_experts=8, num_topk=4, hidden=4096, max_tokens=64)

    def under_way(waits: Waits) -> bool:
        return bool(waits.waited.sum() > 0.1 * waits.seconds and waits.link.sum() > waits.late.sum())

    with running(2, lambda rank, buffer: None, case_of=c) as found:
        waits = first_job(found[0].page.session, under_way, 0.2)
    assert under_way(waits), waits


def test_waits_are_real_time_however_many_blocks_wait(variables: Any) -> None:
    """Rank 1 is late for each combine: what four blocks of a kernel wait at once is one wait."""
    variables(HOST_BLOCKS=4)
    c = case(33, num_ranks=2, num_experts=4, hidden=128)

    def body(group: ThreadGroup) -> tuple[float, float]:
        rank = group.rank()
        rows = expert_rows(rank, c.shape)
        arguments = (c.x[rank], c.topk_idx[rank], c.shape.max_tokens, c.shape.num_experts)
        begin = time.monotonic()
        with low_latency(group, c.shape) as buffer:
            for _ in range(8):
                _, _, handle, _, _ = buffer.low_latency_dispatch(*arguments, use_fp8=False)
                time.sleep(0.03 * rank)
                buffer.low_latency_combine(rows, c.topk_idx[rank], c.topk_weights[rank], handle)
            waited = sum(peer["wait_ns"] for peer in buffer.stats()["peers"] if peer["rank"] != rank)
        return waited / 1e9, time.monotonic() - begin

    for waited, elapsed in run_ranks(2, body):
        assert waited <= elapsed
