"""Buffer.stats(): what it counts adds up with what was sent, on every path."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.uccl_ep.ranks import case, expert_rows, layout_arguments, low_latency, reference_of, throughput
from uccl_ep import Buffer, ThreadGroup, run_ranks

COUNTERS = {
    "rank", "host", "node_local", "via", "rows_sent", "bytes_sent", "rows_received", "bytes_received", "wait_ns",
    "writes", "write_bytes", "arrivals", "stalls",
}  # fmt: skip


def settled(buffer: Buffer) -> dict[str, Any]:
    """Stats after a barrier, once the proxy's threads have added up what they did."""
    deadline = time.monotonic() + 20
    while True:
        buffer.group.barrier()
        before = buffer.stats()
        time.sleep(0.01)
        after = buffer.stats()
        moving = {n for n in before["proxy"] if n != "naps" and before["proxy"][n] != after["proxy"][n]}
        done = sum(p["writes"] for p in after["peers"]) == after["proxy"]["completions"]
        arrived = sum(p["arrivals"] for p in after["peers"]) == after["proxy"]["arrivals"]
        if all(buffer.group.all_gather_object(not moving and done and arrived)) or time.monotonic() > deadline:
            return after


@pytest.mark.parametrize("threads", [1, 2])
def test_stats_low_latency_adds_up(variables: Any, threads: int) -> None:
    variables(RANKS_PER_NODE=2, TRANSPORT="loopback", PROXY_THREADS=threads)
    c = case(11, num_ranks=4, hidden=256)
    wanted = reference_of(c)

    def body(group: ThreadGroup) -> dict[str, Any]:
        rank = group.rank()
        with low_latency(group, c.shape) as buffer:
            arguments = (c.x[rank], c.topk_idx[rank], c.shape.max_tokens, c.shape.num_experts)
            _, _, handle, _, _ = buffer.low_latency_dispatch(*arguments, use_fp8=False)
            rows = expert_rows(rank, c.shape)
            buffer.low_latency_combine(rows, c.topk_idx[rank], c.topk_weights[rank], handle)
            buffer.barrier()
            return settled(buffer)

    stats = run_ranks(4, body)
    for rank, seen in enumerate(stats):
        assert seen["low_latency_combine"]["form"] == "direct" and seen["low_latency_combine"]["reason"]
        assert seen["rank"] == rank and [p["rank"] for p in seen["peers"]] == [0, 1, 2, 3]
        proxied = dict.fromkeys(("writes", "write_bytes", "arrivals"), 0)
        for peer, row in enumerate(seen["peers"]):
            assert set(row) == COUNTERS
            local = peer // 2 == rank // 2
            assert row["node_local"] is local and row["via"] == ("load/store" if local else "loopback")
            assert row["host"] == stats[0]["peers"][0]["host"] != ""
            if local:
                assert row["writes"] == row["write_bytes"] == row["arrivals"] == 0
            # Rows that came from a peer are what the reference says.
            per_source = wanted[rank].layout_range[:, peer] & 0xFFFFFFFF
            assert row["rows_received"] == int(per_source.sum())
            assert row["bytes_received"] == row["rows_received"] * 2 * c.shape.hidden
            for name in proxied:
                proxied[name] += row[name]
        proxy = seen["proxy"]
        assert proxied == {"writes": proxy["completions"], **{n: proxy[n] for n in ("write_bytes", "arrivals")}}
        assert proxy["barriers"] == 1 and proxy["expects"] > 0 and proxy["writes"] > 0
        assert proxy["refused"] == proxy["stale"] == 0
    for a in range(4):  # what one counts as sent, the other counts as arrived
        for b in range(4):
            assert stats[a]["peers"][b]["writes"] == stats[b]["peers"][a]["arrivals"]


def test_stats_throughput_counts_a_row_once_per_node(variables: Any) -> None:
    c = case(12, num_ranks=3, num_experts=6, hidden=128, max_tokens=40)

    def body(group: ThreadGroup) -> tuple[dict[str, Any], dict[str, Any]]:
        rank = group.rank()
        with throughput(group) as buffer:
            layout = layout_arguments(buffer, c.topk_idx[rank], 6)
            buffer.dispatch(c.x[rank], topk_idx=c.topk_idx[rank], topk_weights=c.topk_weights[rank], **layout)
            buffer.barrier()
            return buffer.stats(), layout

    results = run_ranks(3, body)
    for rank, (stats, layout) in enumerate(results):
        assert stats["low_latency_combine"] is None
        assert stats["proxy"]["writes"] == 0  # one node: nothing goes through the proxy
        for peer, row in enumerate(stats["peers"]):
            assert row["rows_received"] == int(results[peer][1]["num_tokens_per_rank"][rank])
            # One node: every token that goes anywhere is put in one stream that all ranks of the node read.
            assert row["rows_sent"] == (int(layout["is_token_in_rank"].any(1).sum()) if peer == rank else 0)
            assert row["bytes_sent"] >= row["rows_sent"] * 2 * 128
            assert (row["bytes_sent"] == 0) == (row["rows_sent"] == 0)


def test_stats_waiting_time_goes_to_the_rank_that_was_late(variables: Any) -> None:
    c = case(13, num_ranks=3, num_experts=6, hidden=128)

    def body(group: ThreadGroup) -> dict[str, Any]:
        rank = group.rank()
        with low_latency(group, c.shape) as buffer:
            group.barrier()
            if rank == 1:
                time.sleep(0.3)
            buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], c.shape.max_tokens, c.shape.num_experts)
            return buffer.stats()

    stats = run_ranks(3, body)
    for rank in (0, 2):
        waited = [p["wait_ns"] for p in stats[rank]["peers"]]
        assert waited[1] > 200_000_000 and waited[1] == max(waited)
        assert sum(waited) < 5_000_000_000
    assert sum(p["wait_ns"] for p in stats[1]["peers"]) < 200_000_000


def test_stats_only_grow(variables: Any) -> None:
    variables(RANKS_PER_NODE=1)
    c = case(14, num_ranks=2, hidden=128)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        with low_latency(group, c.shape) as buffer:
            before = buffer.stats()
            for _ in range(4):
                buffer.low_latency_dispatch(c.x[rank], c.topk_idx[rank], c.shape.max_tokens, c.shape.num_experts)
                after = buffer.stats()
                assert all(after["proxy"][name] >= value for name, value in before["proxy"].items())
                before = after
            buffer.barrier()  # returns when the proxy has carried out what was queued before it
            assert buffer.stats()["proxy"]["commands"] >= 4 * 2

    run_ranks(2, body)
