"""Rows of a combine in FP8, to the bit and by their bytes, and which formats go together with what."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.uccl_ep.ranks import assert_refused, case, expert_rows, low_latency, reference_of, same
from uccl_ep import ThreadGroup, reference, run_ranks
from uccl_ep._native import EXPECT_BYTES
from uccl_ep.layout.combine_formats import CombineFormat, combine_format


@pytest.mark.parametrize("per_node", [1, 2, 4])
@pytest.mark.parametrize("way", ["hook", "now"])
def test_combine_rows_of_fp8_are_the_reference_cast(variables: Any, per_node: int, way: str) -> None:
    """Rows of all ranks are cast, wherever they are, so that results do not depend on who shares a node."""
    variables(RANKS_PER_NODE=per_node, TRANSPORT="loopback")
    c = case(41 + per_node, "mixed" if way == "now" else "some_unused", num_ranks=4, hidden=384, max_tokens=20)
    c.topk_idx[:] = [torch.where(ids >= c.shape.num_experts, -1, ids) for ids in c.topk_idx]
    rows = [expert_rows(r, c.shape) for r in range(4)]
    given = (rows, c.topk_idx, c.topk_weights, reference_of(c))
    coded, plain = (reference.low_latency_combine(*given, use_fp8=fp8) for fp8 in (True, False))
    assert all(reference.calc_diff(a, b) < 1e-3 for a, b in zip(coded, plain, strict=True) if a.numel())

    def body(group: ThreadGroup) -> list[int]:
        rank, sent = group.rank(), []
        with low_latency(group, c.shape) as buffer:
            for turn in range(4):
                handle = buffer.low_latency_dispatch(
                    c.x[rank], c.topk_idx[rank], 20, c.shape.num_experts, use_fp8=False
                )[2]
                buffer.barrier()
                before = int(buffer.stats()["proxy"]["write_bytes"])
                out, _, hook = buffer.low_latency_combine(
                    rows[rank], c.topk_idx[rank], c.topk_weights[rank], handle,
                    use_fp8=turn % 2 == 1, return_recv_hook=way == "hook",
                )  # fmt: skip
                if hook is not None:
                    hook()
                assert same(out, (coded if turn % 2 else plain)[rank]), turn
                buffer.barrier()
                sent.append(int(buffer.stats()["proxy"]["write_bytes"]) - before)
        return sent

    sent = torch.tensor(run_ranks(4, body)).sum(0).tolist()
    assert sent[0] == sent[2] and sent[1] == sent[3]
    headers = 4 * (4 - per_node) * EXPECT_BYTES  # one from each rank to each of other nodes
    rows_sent = [sent_bytes - headers for sent_bytes in sent]
    assert rows_sent[1] < 0.62 * rows_sent[0] if per_node < 4 else sent[0] == 0


def test_combine_rows_that_may_be_asked_for() -> None:
    assert combine_format(False, False, True, 8) is CombineFormat.BF16
    assert combine_format(True, False, False, 1536) is CombineFormat.LOGFMT
    assert combine_format(False, True, False, 1 << 18) is CombineFormat.FP8
    table: list[tuple[tuple[bool, bool, bool, int], list[object]]] = [
        ((True, True, False, 512), ["use_logfmt and use_fp8=both True", "True one at a time"]),
        ((True, False, True, 512), ["zero_copy=True", "False with use_logfmt=True"]),
        ((False, True, True, 512), ["zero_copy=True", "False with use_fp8=True"]),
        ((False, True, False, 200), ["use_fp8=True", "False with hidden=200, which is no multiple of 128"]),
        (
            (True, False, False, 256),
            ["use_logfmt=True", "with hidden=256, which is no multiple of 512 up to 32768"],
        ),
        ((True, False, False, 1 << 16), ["use_logfmt=True", "hidden=65536", "up to 32768"]),
    ]
    for asked, words in table:
        assert_refused(lambda asked=asked: combine_format(*asked), words)
