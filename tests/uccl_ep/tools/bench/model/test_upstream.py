"""Upstream's rules on routings small enough to count by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.uccl_ep.cost_model.flows import by_flow
from uccl_ep.cost_model.cluster import Cluster
from uccl_ep.cost_model.demand import Demand
from uccl_ep.errors import InvalidArgument
from uccl_ep.tools.bench.model import upstream
from uccl_ep.tools.bench.model.upstream import Rows, Upstream

RC = Upstream(efa=False)


def two_nodes() -> Demand:
    """4 ranks on 2 nodes, 8 experts. Rank 0's tokens: one to both ranks of node 1 (three experts) and one at home, and
    one that visits rank 2."""
    none = np.zeros((0, 4), np.int64)
    routing = [np.array([[4, 5, 6, 0], [1, 2, -1, -1], [4, -1, -1, -1]]), none, none, none]
    return Demand(routing, Cluster.even(4, 2), 8)


def test_upstream_low_latency_writes_a_row_per_expert() -> None:
    for how in (upstream.EFA, RC):
        sent = upstream.low_latency_dispatch(two_nodes(), 512, "fp8", how)
        each = 16 + 512 + 16
        assert sent.of("rows").writes.tolist() == [[0, 0, 3, 1], [0] * 4, [0] * 4, [0] * 4]
        assert by_flow(sent)["rows"] == {"writes": 4, "bytes": 4 * each}
        # Each rank counts for the 4 experts of the other node, rows or not.
        assert by_flow(sent)["counts"] == {"writes": 16, "bytes": 0 if how.efa else 128}
        assert sent.immediates == (20 if how.efa else 0)
    back = upstream.low_latency_combine(two_nodes(), 512)
    assert back.of("rows").num_bytes.tolist() == [[0] * 4, [0] * 4, [3072, 0, 0, 0], [1024, 0, 0, 0]]
    assert by_flow(back)["counts"]["writes"] == 16


def test_upstream_batching_writes_once_an_expert() -> None:
    sent = upstream.low_latency_dispatch(two_nodes(), 512, "bf16", Upstream(batched=True))
    assert by_flow(sent)["rows"] == {"writes": 3, "bytes": 4 * (16 + 1024)}


def test_upstream_messages() -> None:
    assert upstream.message_bytes(7168, "fp8") == 16 + 7168 + 224  # the 7 KB of the fact sheet
    assert upstream.message_bytes(7168, "bf16") == 16 + 14336
    with pytest.raises(InvalidArgument, match="nvfp4"):
        upstream.message_bytes(7168, "nvfp4")


def test_upstream_throughput_sends_a_token_once_a_node_in_chunks() -> None:
    rows = Rows(512, scales=4, ids=4, weights=4)
    assert rows.num_bytes == 512 + 8 + 48 + 8
    sent = upstream.throughput_dispatch(two_nodes(), rows, Upstream(channels=1))
    flows = by_flow(sent)
    assert flows["chunks"] == {"writes": 1, "bytes": 2 * rows.num_bytes}  # to rank 2, the same rail
    assert sent.of("chunks").writes[0, 2] == 1
    assert flows["credits"] == {"writes": 0, "bytes": 0}  # no chunk is full
    assert flows["counts"] == {"writes": 4, "bytes": 4 * 4 * (8 + 4 + 1)}
    assert flows["channel counts"] == {"writes": 4, "bytes": 4 * 72}
    assert flows["barriers"] == {"writes": 6, "bytes": 0}
    assert "tails" not in flows and by_flow(upstream.throughput_dispatch(two_nodes(), rows, RC))["tails"]["bytes"] > 0
    back = upstream.throughput_combine(two_nodes(), Rows(1024), Upstream(channels=1))
    assert back.of("chunks").num_bytes[2, 0] == 2 * round(1024 + 16) and back.of("chunks").writes.sum() == 1


def test_upstream_chunks_and_credits_follow_its_table() -> None:
    routing = [np.full((100, 1), 8)] + [np.zeros((0, 1), np.int64)] * 15
    demand = Demand(routing, Cluster.even(16, 8), 16)  # 16 ranks: chunks of 20 out, 12 back
    sent = by_flow(upstream.throughput_dispatch(demand, Rows(512), Upstream(channels=1)))
    assert (sent["chunks"]["writes"], sent["credits"]["writes"]) == (5, 5)
    back = by_flow(upstream.throughput_combine(demand, Rows(512), Upstream(channels=1)))
    assert (back["chunks"]["writes"], back["credits"]["writes"]) == (9, 8)
