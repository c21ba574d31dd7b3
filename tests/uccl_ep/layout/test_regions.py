"""A CPU rank's memory as its peers and its reports see it."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
from dataclasses import replace

import pytest
import torch

from uccl_ep import InvalidArgument, UcclEpError, _native
from uccl_ep.group.topology import Topology
from uccl_ep.layout import regions as of_this_process
from uccl_ep.layout.placement import Placement
from uccl_ep.layout.plan import MemoryPlan
from uccl_ep.layout.regions import Peer, Regions, arena_bytes
from uccl_ep.settings import Settings

PHYSICAL = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def no_nic(num_bytes: int, address: int, dmabufs: list[int]) -> None:
    """Takes no memory."""


def made(rank: int, low_latency: bool = False) -> Regions:
    plan = MemoryPlan(Topology((0, 0)), 1 << 16, 1 << 16, low_latency)
    if low_latency:
        plan.reserve_zero_copy(1 << 20)
    regions = Regions(plan, Placement("host", "a test"), rank, Settings())
    regions.make()
    return regions


def test_regions_rows_are_given_back_where_they_are() -> None:
    regions = made(0, low_latency=True)
    peer = _native.Segment.map(regions._peer_data[0].fd, regions.plan.data_bytes)  # as another process has it
    zero_copy, _ = regions.zero_copy(1, no_nic)
    first = regions.plan.throughput.base
    regions.data.fill_(7)
    zero_copy[: 1 << 20].fill_(7)
    held = regions.held()
    assert held["rows"] >= regions.plan.data_bytes and held["zero-copy rows"] >= 1 << 20
    assert regions.give_back("a NIC") == {"rows": "a NIC", "zero-copy rows": "a NIC"} and regions.held() == held
    assert regions.give_back("") == {}
    assert regions.held() == {**held, "rows": first, "zero-copy rows": 0}
    assert not peer.numpy()[first:].any() and (peer.numpy()[:first] == 7).all()
    regions.take_again()
    regions.data[first:].fill_(5)
    assert (peer.numpy()[first : regions.plan.data_bytes] == 5).all()


def test_regions_peers_see_each_others_words() -> None:
    one, two = made(0), made(1)
    for mine, other in ((one, two), (two, one)):
        mine.meet([Peer(other.endpoints(b"", 0), True, True)])
    one.data.view(torch.int64)[5] = 77
    assert two.data_word(0, 40) == 77 == one.data_word(0, 40)
    for said in (2, 1):
        one.say_departed(said)
    for at in (one.plan.control.SOME_DEPARTED, one.plan.control.departed(0)):
        assert two.control_word(1, at) == 2 and one.control_word(0, at) == 0  # written to others only, and never less
    tables = _native.RankTablesSettings()
    tables.node_of, tables.num_rings = [0, 0], one.num_rings
    assert one.place(tables, [0, 1]).bytes
    assert one.mask.tolist() == [0, 0] and one.read_stats().shape == (2, _native.PEER_STATS)
    view = one.data
    for regions in (one, two):
        regions.release_peers()
        regions.close()
        regions.close()
    assert view.view(torch.int64)[5] == 77  # as long as somebody looks


def test_regions_control_of_ranks_of_other_nodes_is_opened_and_their_data_is_not() -> None:
    one, two = made(0), made(1)
    one.meet([Peer(two.endpoints(b"", 0), False, True)])
    assert one.control_word(1, 0) == 0
    with pytest.raises(KeyError):
        one.data_word(1, 0)


def test_regions_of_a_rank_of_another_host_nothing_is_opened() -> None:
    topology = Topology((0, 0), host_of=(0, 1))
    regions = Regions(MemoryPlan(topology, 1 << 16, 0, False), Placement("host", "a test"), 0, Settings())
    regions.make()
    regions.meet([Peer(made(1).endpoints(b"", 0), True, False, same_host=False)])
    assert set(regions.controls) == {0} and regions.control_word(1, 80) == 0 and 1 not in regions.neighbours()
    departed = regions.plan.control.departed(1)
    regions.note_goodbye(1, _native.DEPARTED_LEFT)
    assert regions.control_word(0, departed) == _native.DEPARTED_LEFT
    regions.note_goodbye(1, _native.DEPARTED_LEAVING)
    assert regions.control_word(0, departed) == _native.DEPARTED_LEFT  # it only grows
    assert regions.knowledge().heard_ns == {}  # no proxy hears of it
    regions.close()


def test_regions_memory_of_a_rank_that_has_ended_is_missed_by_its_name() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    for pid, ended in ((gone.pid, ": its process has ended"), (os.getpid(), "")):
        endpoints = replace(made(1).endpoints(b"", 0), segment_pid=pid, control_fd=987654)
        wanted = rf"rank 0 cannot open the memory of rank 1{ended} \(segment of pid {pid} fd 987654: .*No such file"
        with pytest.raises(UcclEpError, match=wanted):
            made(0).meet([Peer(endpoints, True, False)])


def test_regions_memory_of_a_rank_that_may_not_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoints = replace(made(1).endpoints(b"", 0), control_fd=987654)
    exists = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: path != f"/proc/{os.getpid()}" and exists(path))
    with pytest.raises(UcclEpError, match=r"rank 1: its process lives, but this one may not look at it \(hidepid\) "):
        made(0).meet([Peer(endpoints, True, False)])


def test_regions_neighbours_are_the_ranks_of_the_host_and_outlive_it() -> None:
    one, two = made(0), made(1)
    one.meet([Peer(two.endpoints(b"", 0), False, True)])
    two.meet([Peer(one.endpoints(b"", 0), False, True)])
    first, second = one.neighbours(), two.neighbours()
    one.say_departed(2)
    assert 1 in first and 0 not in first and second.has_left(0)
    first.vote_against([1])
    one.say_departed(2)
    assert second.has_voted_against(0), "it leaves after its vote, which stays"
    assert not first.has_voted_against(1) and not one.control_word(0, one.plan.control.SOME_DEPARTED)
    second.vote_against([0])
    assert one.control_word(0, one.plan.control.SOME_DEPARTED), "or no kernel looks for the vote"
    one.close()
    two.close()
    assert second.has_voted_against(0) and first.has_voted_against(1)


def test_regions_what_the_proxy_maps_and_peers_are_told() -> None:
    regions = made(1, low_latency=True)
    plan = regions.plan
    assert [(offset, size) for offset, size, _ in regions.spans()] == [
        (0, plan.data_bytes), (plan.control_offset, plan.control_bytes), (plan.zero_copy_offset, plan.zero_copy_bytes),
    ]  # fmt: skip
    assert regions.devices() == []
    endpoints = regions.endpoints(b"address", 12)
    assert (endpoints.rank, endpoints.segment_pid, endpoints.watch_pid, endpoints.address) == (
        1,
        os.getpid(),
        12,
        b"address",
    )
    assert endpoints.data_handle == b"" and endpoints.flat_bytes == plan.flat_bytes
    memory, offset = regions.zero_copy(5, no_nic)
    assert memory.numel() == 1 << 20 and offset == plan.zero_copy_offset


@pytest.mark.parametrize("same_process", [True, False])
def test_regions_results_and_zero_copy_rows_are_seen_by_the_node(same_process: bool) -> None:
    one, two = made(0, low_latency=True), made(1, low_latency=True)
    for mine, other in ((one, two), (two, one)):
        mine.meet([Peer(other.endpoints(b"", 0), True, same_process)])
    tables = _native.RankTablesSettings()
    tables.node_of, tables.num_rings = [0, 0], one.num_rings
    assert (one.arenas, one.zero_copy_rows) == (0, 0)
    fds = {fd for r in (one, two) for fd in (r.endpoints(b"", 0).arena_fd, r.endpoints(b"", 0).zero_copy_fd)}
    assert fds <= set(of_this_process._made_here)
    one.place(tables, [0, 1])
    assert one.arena is not None and two.arena is not None
    for table, written in ((one.arenas, two.arena.numpy()), (one.zero_copy_rows, two.zero_copy(1, no_nic)[0].numpy())):
        mine, others, *sizes = (ctypes.c_uint64 * 4).from_address(table)  # type: ignore[assignment]
        assert sizes == [written.size, written.size]
        assert (others == written.ctypes.data) == same_process  # mapped once in a process
        written[100:104] = 7, 8, 9, 10
        assert ctypes.string_at(others + 100, 4) == bytes([7, 8, 9, 10])
        assert ctypes.string_at(mine + 100, 4) == bytes(4)  # type: ignore[operator]
    one.close()
    assert one.arena is None and (one.arenas, one.zero_copy_rows) == (0, 0)
    two.close()
    assert not set(of_this_process._made_here) & fds


def test_regions_nobody_reads_results_of_a_rank_that_is_alone_on_its_node() -> None:
    regions = Regions(MemoryPlan(Topology((0, 1, 1)), 1 << 16, 0, False), Placement("host", "a test"), 0, Settings())
    regions.make()
    assert regions.arena is None and regions.endpoints(b"", 0).arena_fd == -1


@pytest.mark.parametrize(
    ("limited", "wanted"),
    [({}, min(1 << 36, PHYSICAL)), ({resource.RLIMIT_AS: 1 << 40}, 0), ({resource.RLIMIT_FSIZE: 1 << 30}, 1 << 30)],
)
def test_regions_reserve_what_limits_allow(
    monkeypatch: pytest.MonkeyPatch, limited: dict[int, int], wanted: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limited.get(which, resource.RLIM_INFINITY),) * 2)
    assert arena_bytes() == wanted
    regions = made(0)
    assert (regions.arena.bytes if regions.arena is not None else 0) == wanted


def test_regions_zero_copy_rows_that_a_nic_pins_are_not_read_in_place() -> None:
    plan = MemoryPlan(Topology((0, 0, 1)), 1 << 16, 1 << 16, True)
    plan.reserve_zero_copy(1 << 20, pinned=True)  # a third set of rows would take memory
    regions = Regions(plan, Placement("host", "a test"), 0, Settings())
    regions.make()
    endpoints = regions.endpoints(b"", 0)
    assert endpoints.zero_copy_fd == -1 and endpoints.arena_fd >= 0


def test_regions_zero_copy_needs_low_latency() -> None:
    with pytest.raises(InvalidArgument, match="zero copy needs a Buffer made with low_latency_mode=True"):
        made(0).zero_copy(1, no_nic)
