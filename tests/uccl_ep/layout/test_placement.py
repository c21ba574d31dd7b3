"""Where rows lie, decided from what all ranks know."""

from __future__ import annotations

from dataclasses import replace

import pytest

from uccl_ep.fabric.visibility import WORDS
from uccl_ep.group.handshake import Hello
from uccl_ep.group.topology import Topology
from uccl_ep.layout.placement import choose_placement

CPU = [("p", "", 0), ("q", "", 0)]
TWO_GPUS = [("p", "a", 1), ("q", "b", 1)]


def hellos(ranks: list[tuple[str, str, int]]) -> list[Hello]:
    """One for each (process, gpu, exportable)."""
    return [
        Hello(r, "h", "h", process, 1, "", {}, 0, b"", device="cuda" if gpu else "cpu", gpu=gpu, exportable=share)
        for r, (process, gpu, share) in enumerate(ranks)
    ]


@pytest.mark.parametrize(
    "ranks, nodes, where, reason",
    [
        (CPU, (0, 0), "host", "kernels run on the CPU"),
        (CPU, (0, 1), "host", "kernels run on the CPU"),
        (TWO_GPUS, (0, 0), "device", "all ranks are on one node"),
        (TWO_GPUS, (0, 1), "host", "proxies read and write rows with the CPU (tcp)"),
        ([("p", "a", 0)], (0,), "device", "one node"),
        ([("p", "a", 0), ("p", "a", 0)], (0, 0), "device", "one node"),  # threads need no handle
        ([("p", "a", 1), ("q", "b", 0)], (0, 0), "host", "GPU b of rank 1 cannot share its memory"),
        ([("p", "a", 1), ("p", "b", 1)], (0, 0), "host", "one process has ranks on several GPUs (a, b)"),
        ([("p", "a", 1), ("p", "a", 1), ("q", "b", 1)], (0, 0, 0), "device", "one node"),
    ],
)
def test_placement(ranks: list[tuple[str, str, int]], nodes: tuple[int, ...], where: str, reason: str) -> None:
    chosen = choose_placement(hellos(ranks), Topology(nodes), "tcp")
    assert chosen.where == where and reason in chosen.reason


@pytest.mark.parametrize(
    "family, ways, where, reason",
    [
        ("verbs", ("dmabuf", "dmabuf"), "device", "NICs reach GPU memory (verbs, by dmabuf)"),
        ("verbs", ("dmabuf", "peer_memory"), "device", "NICs reach GPU memory (verbs, by dmabuf and peer_memory)"),
        ("verbs", ("dmabuf", "host"), "host", "no NIC reaches the GPU memory of rank 1 (h): dmabuf: refused"),
        ("verbs", ("dmabuf", None), "host", "no NIC reaches the GPU memory of rank 1 (h): it has not said how"),
        ("libfabric", ("dmabuf", "dmabuf"), "host", "proxies read and write rows with the CPU (libfabric)"),
    ],
)
def test_placement_where_nics_reach_a_gpu(family: str, ways: tuple[str | None, ...], where: str, reason: str) -> None:
    told = [{"gpu_memory": way, "gpu_memory_reason": "dmabuf: refused"} if way else {} for way in ways]
    ranks = [replace(i, fabric=told[i.rank]) for i in hellos(TWO_GPUS)]
    chosen = choose_placement(ranks, Topology((0, 1)), family)
    assert (chosen.where, reason in chosen.reason) == (where, True)
    assert chosen.by_address == frozenset(r for r, way in enumerate(ways) if way == "peer_memory" and where == "device")


@pytest.mark.parametrize(
    "family, scope, no_flush, apart, way",
    [
        ("verbs", "none", "none", False, "nic_read"),
        ("verbs", "all", "none", False, "none"),
        ("verbs", "owner", "none", False, "nic_read"),  # another rank of the node reads rank 0's memory
        ("verbs", "owner", "none", True, "owner"),  # each is a cell of its own
        ("efa", "owner", "", False, "driver"),
        ("efa", "none", "no call", False, ""),
    ],
)
def test_placement_goes_by_what_makes_nics_writes_visible(
    family: str, scope: str, no_flush: str, apart: bool, way: str
) -> None:
    told = {"gpu_memory": "dmabuf", "gpu_scope": scope, "gpu_reason": "a GPU", "gpu_no_flush": no_flush}
    ranks = [replace(i, fabric=told) for i in hellos([*TWO_GPUS, ("r", "c", 1), ("s", "d", 1)])]
    chosen = choose_placement(ranks, Topology((0, 0, 1, 1), apart=apart), family)
    if not way:
        assert chosen.where == "host" and not chosen.ways
        assert chosen.reason.startswith("what NICs write into the GPU of rank 0 may be seen too late: a GPU; efa has")
        return
    assert chosen.where == "device" and {chosen.ways[r][0] for r in range(4)} == {way}
    assert f"{WORDS[way]} (a GPU" in chosen.reason


def test_placement_is_in_the_host_where_one_rank_cannot_make_it_visible() -> None:
    told = {"gpu_memory": "dmabuf", "gpu_no_flush": ""}
    ranks = [replace(i, fabric=told) for i in hellos(TWO_GPUS)]
    assert choose_placement(ranks, Topology((0, 1)), "efa").ways[1][0] == "driver"
    ranks[1] = replace(ranks[1], fabric={**told, "gpu_no_flush": "a process"})
    chosen = choose_placement(ranks, Topology((0, 1)), "efa")
    assert chosen.where == "host" and "the GPU of rank 1 may be seen too late" in chosen.reason
