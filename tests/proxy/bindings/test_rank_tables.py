"""The tables behind a kernel's rank context: who is where, and what is refused."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from uccl_ep import _native
from uccl_ep.topology import split_into_nodes

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


@given(hosts=st.lists(st.sampled_from("abcd"), min_size=1, max_size=120), data=st.data())
def test_rank_tables_say_who_is_where(hosts: list[str], data: st.DataObject) -> None:
    topology = split_into_nodes(hosts, data.draw(st.integers(0, 9)), MOST)
    rank = data.draw(st.integers(0, len(hosts) - 1))
    made, _ = tables(list(topology.node_of), rank)
    raw = made.context.bytes
    # struct TopologyView of kernels/layout/topology.h is what a RankContext begins with.
    node_of, local_of, node_begin, members = struct.unpack_from("<4Q", raw)
    ranks, nodes, own, node, local, size, fan = struct.unpack_from("<7I", raw, 32)
    assert (ranks, nodes, own, node) == (len(hosts), topology.num_nodes, rank, topology.node_of[rank])
    mine = topology.members(node)
    assert (local, size, fan) == (mine.index(rank), len(mine), topology.fan)
    assert read(node_of, ranks) == list(topology.node_of)
    begin = read(node_begin, nodes + 1)
    everybody = read(members, ranks)
    for n in range(nodes):
        assert everybody[begin[n] : begin[n + 1]] == topology.members(n)
    for r, i in enumerate(read(local_of, ranks)):
        assert topology.members(topology.node_of[r])[i] == r


def test_rank_tables_context_carries_the_settings() -> None:
    made, memory = tables([0, 0, 1], 1, shrink=True)
    raw = made.context.bytes
    data, control, _rings, num_rings, shrink, mask, stats, timeout, offset = struct.unpack_from("<3Q2I4Q", raw, 64)
    assert (num_rings, shrink, mask, stats, timeout, offset) == (0, 1, 4242, 4343, 77, 1 << 33)
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
        ([0, 0], 0, {"data": [1]}, "data and control need one address a node rank"),
        ([0, 0], 0, {"control": [1, 2, 3]}, "data and control need one address a node rank"),
    ],
)
def test_rank_tables_refuse(node_of: list[int], rank: int, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"RankTables: {words}"):
        tables(node_of, rank, **changes)


def test_rank_tables_take_the_largest_group() -> None:
    made, _ = tables([r // MOST for r in range(4096)], 4095)
    ranks, nodes = struct.unpack_from("<2I", made.context.bytes, 32)
    assert (ranks, nodes) == (4096, 64)
