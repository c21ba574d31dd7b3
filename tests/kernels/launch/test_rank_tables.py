"""The tables behind a kernel's rank context: who is where, and what is refused."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from uccl_ep import _native
from uccl_ep.group.topology import NO_NODE, Topology, split_into_nodes

MOST = _native.MAX_RANKS_PER_NODE


def tables(node_of: list[int], rank: int = 0, **changes: Any) -> tuple[_native.RankTables, Any]:
    local = node_of.count(node_of[rank]) if rank < len(node_of) else 1
    memory = torch.zeros(4096, dtype=torch.uint8)
    settings = _native.RankTablesSettings()
    values = {
        "rank": rank, "node_of": node_of, "data": [memory.data_ptr() + i for i in range(local)],
        "control": [memory.data_ptr() + 64 * i for i in range(local)], "rings": memory.data_ptr(), "num_rings": 0,
        "num_channels": 3, "timeout_ns": 77, "control_offset": 1 << 33, "mask": 4242, "peer_stats": 4343,
    }  # fmt: skip
    for name, value in {**values, **changes}.items():
        setattr(settings, name, value)
    return _native.RankTables(settings), memory


def read(address: int, count: int) -> list[int]:
    import ctypes

    return list((ctypes.c_uint32 * count).from_address(address))


def fan_of(topology: Topology) -> int:
    """Most sources of one node that one rank of another stands for."""
    cells = [topology.cell_of.count(cell) for cell in range(topology.num_cells)]
    return -(-max(topology.sizes) // min(cells))


@given(hosts=st.lists(st.sampled_from("abcd"), min_size=1, max_size=120), data=st.data())
def test_rank_tables_say_who_is_where(hosts: list[str], data: st.DataObject) -> None:
    topology = split_into_nodes(hosts, data.draw(st.integers(0, 9)), MOST)
    rank = data.draw(st.integers(0, len(hosts) - 1))
    made, _ = tables(list(topology.node_of), rank)
    raw = made.context.bytes
    # struct TopologyView of kernels/layout/topology.h is what a RankContext begins with.
    node_of, local_of, cell_of, place_of, cell_begin, members, mates = struct.unpack_from("<7Q", raw)
    ranks, nodes, cells, own, node, local, size, cell, place, fan = struct.unpack_from("<10I", raw, 56)
    assert (ranks, nodes, cells, own) == (len(hosts), topology.num_nodes, topology.num_nodes, rank)
    assert (node, cell) == (topology.node_of[rank], topology.node_of[rank])
    mine = topology.members(node)
    assert (local, place, size, fan) == (mine.index(rank), mine.index(rank), len(mine), fan_of(topology))
    assert read(node_of, ranks) == read(cell_of, ranks) == list(topology.node_of)
    assert read(local_of, ranks) == read(place_of, ranks) and read(mates, size) == mine
    begin = read(cell_begin, nodes + 1)
    everybody = read(members, ranks)
    for n in range(nodes):
        assert everybody[begin[n] : begin[n + 1]] == topology.members(n)
    for r, i in enumerate(read(local_of, ranks)):
        assert topology.members(topology.node_of[r])[i] == r


@given(hosts=st.lists(st.sampled_from("abcd"), min_size=2, max_size=60), data=st.data())
def test_rank_tables_with_cells_a_rank_and_absent_ranks(hosts: list[str], data: st.DataObject) -> None:
    gone = data.draw(st.sets(st.integers(0, len(hosts) - 1), max_size=len(hosts) - 1))
    topology = replace(split_into_nodes(hosts, 0, MOST), apart=True).without(gone)
    rank = data.draw(st.sampled_from(sorted(set(range(len(hosts))) - gone)))
    made, _ = tables(list(topology.node_of), rank, cell_of=list(topology.cell_of))
    raw = made.context.bytes
    node_of, _, cell_of, place_of, cell_begin, members, mates = struct.unpack_from("<7Q", raw)
    ranks, nodes, cells, own, node, _, size, cell, _, fan = struct.unpack_from("<10I", raw, 56)
    assert (ranks, nodes, cells, own, fan) == (
        len(hosts),
        topology.num_nodes,
        topology.num_cells,
        rank,
        fan_of(topology),
    )
    assert (node, cell) == (topology.node_of[rank], topology.cell_of[rank])
    assert read(node_of, ranks) == list(topology.node_of) and read(cell_of, ranks) == list(topology.cell_of)
    assert read(mates, size) == topology.members(node)
    begin, everybody = read(cell_begin, cells + 1), read(members, len(hosts) - len(gone))
    places = read(place_of, ranks)
    for r, of in enumerate(topology.cell_of):
        assert r in gone or everybody[begin[of] + places[r]] == r


def test_rank_tables_context_carries_the_settings() -> None:
    made, memory = tables([0, 0, 1], 1, shrink=True)
    raw = made.context.bytes
    data, control, _rings, num_rings, shrink, mask, stats, timeout, tag, _, offset = struct.unpack_from(
        "<3Q2I3Q2IQ", raw, 96
    )
    assert (num_rings, shrink, mask, stats, timeout, tag, offset) == (0, 1, 4242, 4343, 77, 0, 1 << 33)
    import ctypes

    assert list((ctypes.c_uint64 * 2).from_address(data)) == [memory.data_ptr(), memory.data_ptr() + 1]
    assert list((ctypes.c_uint64 * 2).from_address(control)) == [memory.data_ptr(), memory.data_ptr() + 64]


@pytest.mark.parametrize(
    "node_of, rank, changes, words",
    [
        ([], 0, {}, "node_of needs 1 to 4096 entries"),
        ([0] * 4097, 0, {}, "node_of needs 1 to 4096 entries"),
        ([0, 0], 2, {}, "rank is beyond node_of"),
        ([0, 2], 0, {}, "a node without ranks"),
        ([0] * (MOST + 1), 0, {}, "more than 64 ranks on one node"),
        ([NO_NODE, 0], 0, {}, "this rank is absent"),
        ([0, 1], 0, {"cell_of": [0]}, "cell_of needs no entry or one a rank"),
        ([0, 1], 0, {"cell_of": [0, 0]}, "a cell on two nodes"),
        ([0, 1], 0, {"cell_of": [0, NO_NODE]}, "a rank is absent from nodes or from cells only"),
        ([0, 0], 0, {"data": [1]}, "data and control need one address a node rank"),
        ([0, 0], 0, {"control": [1, 2, 3]}, "data and control need one address a node rank"),
    ],
)
def test_rank_tables_refuse(node_of: list[int], rank: int, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"RankTables: {words}"):
        tables(node_of, rank, **changes)


RANK_CONTEXT_POINTERS = {"node_of": 0, "local_of": 8, "cell_of": 16, "place_of": 24, "cell_begin": 32, "members": 40,
                         "mates": 48, "data": 96, "control": 104, "rings": 112}  # fmt: skip
RING_VIEW = struct.Struct("<6Q2I")  # slots, head, cached tail and done, tail, done, capacity, unused


def test_rank_tables_image_is_the_tables_wherever_it_lies() -> None:
    made, memory = tables([0, 0, 1, 1, 1], 3, num_rings=3, ring_capacity=16)
    here = made.context.bytes
    for address in (1 << 40, (1 << 40) + 8, 4096):
        image, context = made.placed_at(address)
        there = context.bytes
        sizes = {"node_of": 20, "local_of": 20, "cell_of": 20, "place_of": 20, "cell_begin": 12, "members": 20,
                 "mates": 12, "data": 24, "control": 24, "rings": 3 * RING_VIEW.size}  # fmt: skip
        used = []
        for name, place in RANK_CONTEXT_POINTERS.items():
            (old,), (new,) = struct.unpack_from("<Q", here, place), struct.unpack_from("<Q", there, place)
            begin, end = new - address, new - address + sizes[name]
            assert new % 8 == 0 and 0 <= begin < end <= len(image), name
            assert image[begin:end] == bytes(memory_at(old, sizes[name])), name
            used.append((begin, end))
        used.sort()
        assert all(a[1] <= b[0] for a, b in zip(used, used[1:], strict=False))  # nothing overlaps
        for place in RANK_CONTEXT_POINTERS.values():  # and nothing but the pointers is different
            there = there[:place] + here[place : place + 8] + there[place + 8 :]
        assert there == here
    assert memory.numel()


def memory_at(address: int, count: int) -> Any:
    import ctypes

    return (ctypes.c_uint8 * count).from_address(address)


def test_rank_tables_ring_words_lie_where_the_producers_have_them() -> None:
    words = 1 << 41
    near, memory = tables([0], 0, num_rings=3, ring_capacity=16, ring_words=words)
    plain, _ = tables([0], 0, num_rings=3, ring_capacity=16, rings=memory.data_ptr())
    for i in range(3):
        views = []
        for made in (near, plain):
            (rings,) = struct.unpack_from("<Q", made.context.bytes, RANK_CONTEXT_POINTERS["rings"])
            views.append(RING_VIEW.unpack(bytes(memory_at(rings + i * RING_VIEW.size, RING_VIEW.size))))
        moved, original = views
        assert moved[1:4] == (words + 24 * i, words + 24 * i + 8, words + 24 * i + 16)
        base = memory.data_ptr() + i * _native.ring_bytes(16)
        assert all(base <= word < base + 256 for word in original[1:4])
        assert moved[0] == original[0] and moved[4:] == original[4:]  # slots, tail and done stay with the proxy


def test_rank_tables_take_the_largest_group() -> None:
    made, _ = tables([r // MOST for r in range(4096)], 4095)
    ranks, nodes = struct.unpack_from("<2I", made.context.bytes, 56)
    assert (ranks, nodes) == (4096, 64)
