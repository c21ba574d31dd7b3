"""EPBuffer: V2.5's differences from ElasticBuffer, each with values. Load balancing: test_balance.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.uccl_ep.elastic.worlds import HIDDEN, MAX_TOKENS, TOPK, a_case, expected
from tests.uccl_ep.ranks import assert_refused, same
from uccl_ep import ThreadGroup, run_ranks
from uccl_ep.elastic import EPBuffer


def on_ranks(ranks: int, body: Any) -> None:
    def run(group: ThreadGroup) -> None:
        sizes = {"num_max_tokens_per_rank": MAX_TOKENS, "hidden": HIDDEN, "num_topk": TOPK}
        buffer = EPBuffer(group, **sizes, explicitly_destroy=True)
        try:
            body(group.rank(), buffer)
            group.barrier()
        finally:
            buffer.destroy()
        assert buffer.runtime is None

    run_ranks(ranks, run)


def test_ep_buffer_defers_the_epilogue(variables: Any) -> None:
    variables(RANKS_PER_NODE=2)
    c = a_case(5, 4)

    def body(rank: int, buffer: EPBuffer) -> None:
        want = expected(c)[rank]
        topk = (c.topk_idx[rank], c.topk_weights[rank])
        event = buffer.dispatch(
            c.x[rank], *topk, num_experts=c.shape.num_experts, async_with_compute_stream=True, defer_epilogue=True
        )
        x, idx, weights, handle = event.wait()
        assert same(x, want.tokens.recv_x) and same(weights, want.weights) and same(idx, want.tokens.recv_topk_idx)
        plain = buffer.dispatch(c.x[rank], *topk, num_experts=c.shape.num_experts, do_expand=True)
        assert len(plain) == 5 and plain[4].event is None
        taken = [want.tokens.recv_x[choice[0]] for choice in want.choices(1) if choice]
        assert same(plain[0], torch.stack(taken) if taken else plain[0][:0])
        combined, combined_weights = buffer.combine(
            x, handle, weights, async_with_compute_stream=True, defer_epilogue=True
        ).current_stream_wait()
        again = buffer.combine(x, handle, weights)
        assert same(again[0], combined) and same(again[1], combined_weights)
        assert same(combined_weights, torch.where(topk[0] >= 0, topk[1], 0.0))
        assert_refused(lambda: buffer.combine(x, handle, defer_epilogue=True), ["defer_epilogue"])
        for bad, words in (
            ({"do_handle_copy": True}, "do_handle_copy"),
            ({"defer_epilogue": True}, "defer_epilogue"),
            ({"previous_event": buffer.capture()}, "previous_event"),
        ):
            arguments = {"num_experts": c.shape.num_experts, **bad}
            assert_refused(lambda a=arguments: buffer.dispatch(c.x[rank], *topk, **a), [words])

    on_ranks(4, body)


def test_ep_buffer_handle_refuses_changed_ids(variables: Any) -> None:
    variables()
    c = a_case(6, 2, "uniform")

    def body(rank: int, buffer: EPBuffer) -> None:
        ids = torch.cat([c.topk_idx[rank], torch.zeros(1, TOPK, dtype=torch.int64)])
        x = torch.cat([c.x[rank], torch.zeros(1, HIDDEN).bfloat16()])[:MAX_TOKENS]
        ids = ids[:MAX_TOKENS].contiguous()
        received, _, _, handle, _ = buffer.dispatch(x, ids, num_experts=c.shape.num_experts)
        assert handle.topk_idx is ids
        ids += 0
        with pytest.raises(AssertionError, match="modified in place"):
            buffer.combine(received, handle)
        with pytest.raises(AssertionError, match="modified in place"):
            buffer.dispatch(x, handle=handle)

    on_ranks(2, body)


def test_ep_buffer_attributes(variables: Any, capsys: Any) -> None:
    variables()

    def body(rank: int, buffer: EPBuffer) -> None:
        assert (buffer.rank_idx, buffer.num_ranks) == (rank, 2)  # type: ignore[attr-defined]
        assert buffer.get_logical_domain_size() == (1, 2) and buffer.get_theoretical_num_sms(4, 2) >= 4
        assert EPBuffer.get_buffer_size_hint(ThreadGroup.create(2)[0], 8, 256) % (2 << 20) == 0
        buffer.barrier()
        if rank == 0:
            buffer.print_memory_usage()

    on_ranks(2, body)
    assert "throughput rings" in capsys.readouterr().out
