"""The handle: DeepEP's tuple, worked out when it is looked at, on the device that the tables are on."""

from __future__ import annotations

import pytest
import torch

from uccl_ep.device.protocol import HostWords
from uccl_ep.throughput.handle import Routing, ThroughputHandle


def routing(num_nodes: int, words: bool) -> Routing:
    """Two ranks, one channel; rank 0 has sent 2 rows, rank 1 one; this rank sends its 3 tokens as the table says."""
    table = torch.tensor([[True, False], [True, True], [False, True]])
    one = torch.tensor([3], dtype=torch.int32)
    counts = torch.tensor([2, 1], dtype=torch.int32)
    return Routing(
        channels=1, num_tokens=3, num_local_experts=2, topk=1, is_token_in_rank=table,
        channel_prefix=torch.tensor([[2], [2]]).int(), node_rows=torch.full((num_nodes, 1), 2).int(),
        recv_tokens=torch.tensor([[2], [1]]).int(), recv_begin=torch.tensor([[0], [2]]).int(),
        stream_rows=torch.tensor([[2], [1]]).int(), reducer_tokens=torch.zeros(2, 1, 1).int(),
        rank_prefix=torch.tensor([2, 3]).int(),
        expert_counts=HostWords(counts, counts.data_ptr()) if words else counts,
        recv_total=HostWords(one, one.data_ptr()) if words else one,
        recv_src_idx=torch.tensor([0, 1, 0]).int(), number=torch.ones(1).int(), refusal=None, num_rows=0, owner=None,
    )  # fmt: skip


def test_routing_counted_once_the_host_may_read() -> None:
    made = routing(1, words=True)
    assert made.counted() == [2, 1] and made.num_rows == 3
    assert sum(isinstance(t, HostWords) for t in made.tensors()) == 2  # kept with the others
    with pytest.raises(AssertionError):
        routing(1, words=False).counted()  # nobody has waited for it


@pytest.mark.parametrize("num_nodes, parts", [(1, 6), (2, 10)])
def test_routing_handle(num_nodes: int, parts: int) -> None:
    made = routing(num_nodes, words=True)
    handle = ThroughputHandle.make(made, num_nodes)
    assert len(handle) == parts == len(list(handle)) and handle == handle and handle != ThroughputHandle.make(made, 1)
    order = handle[5] if num_nodes == 1 else handle[8]
    assert order.tolist() == [[0, -1], [1, 0], [-1, 1]]
    if num_nodes > 1:
        assert handle[7].view(torch.int32).tolist() == [[0, 0], [0, 1], [1, 0]]  # source rank, token
    assert repr(handle) == f"ThroughputHandle({parts} tensors, 0 rows)"
