"""Rows of a combine in each format, to the bit and by their bytes, and which formats go together with what."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.uccl_ep.ranks import assert_refused, case, expert_rows, low_latency, reference_of, same
from uccl_ep import ThreadGroup, reference, run_ranks
from uccl_ep._native import EXPECT_BYTES
from uccl_ep.layout.combine_formats import KEYWORDS, RowFormat, combine_format, name_of


@pytest.mark.mostly_slow(quick=6)
@pytest.mark.parametrize("per_node", [1, 2, 4])
@pytest.mark.parametrize("way", ["hook", "now"])
@pytest.mark.parametrize(
    "keyword, hidden, near, short",
    [("use_fp8", 384, 1e-3, 0.62), ("use_mxfp8", 352, 1e-3, 0.62), ("use_nvfp4", 448, 8e-3, 0.36)],
)
def test_combine_rows_are_the_reference_cast(
    variables: Any, per_node: int, way: str, keyword: str, hidden: int, near: float, short: float
) -> None:
    """Rows of all ranks are cast, wherever they are, so that results do not depend on who shares a node."""
    variables(RANKS_PER_NODE=per_node, TRANSPORT="loopback")
    c = case(41 + per_node, "mixed" if way == "now" else "some_unused", num_ranks=4, hidden=hidden, max_tokens=20)
    c.topk_idx[:] = [torch.where(ids >= c.shape.num_experts, -1, ids) for ids in c.topk_idx]
    rows = [expert_rows(r, c.shape) for r in range(4)]
    given = (rows, c.topk_idx, c.topk_weights, reference_of(c))
    coded, plain = (reference.low_latency_combine(*given, **{keyword: on}) for on in (True, False))
    off = [reference.calc_diff(a, b) for a, b in zip(coded, plain, strict=True)]
    assert 0 < max(off) < near

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
                    **{keyword: turn % 2 == 1}, return_recv_hook=way == "hook",
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
    assert rows_sent[1] < short * rows_sent[0] if per_node < 4 else sent[0] == 0


def test_combine_rows_that_may_be_asked_for() -> None:
    def ask(*keywords: str, zero_copy: bool = False, hidden: int = 512) -> RowFormat:
        assert set(keywords) <= set(KEYWORDS)
        return combine_format([keyword in keywords for keyword in KEYWORDS], zero_copy, hidden)

    assert ask(zero_copy=True, hidden=8) is RowFormat.BF16
    assert ask("use_logfmt", hidden=1536) is RowFormat.LOGFMT
    assert ask("use_fp8", hidden=1 << 18) is RowFormat.FP8
    assert ask("use_mxfp8", hidden=96) is RowFormat.MXFP8 and ask("use_nvfp4", hidden=192) is RowFormat.NVFP4_ROW
    assert [name_of(ask(keyword)) for keyword in KEYWORDS] == ["logfmt", "fp8", "mxfp8", "nvfp4"]
    assert (name_of(RowFormat.BF16), name_of(99)) == ("bf16", "format 99")
    refused: list[tuple[Any, list[object]]] = [
        (lambda: ask("use_logfmt", "use_fp8"), ["use_logfmt and use_fp8=both True", "True one at a time"]),
        (lambda: ask("use_nvfp4", "use_mxfp8", "use_fp8"), ["use_fp8 and use_mxfp8 and use_nvfp4=all True"]),
        *((lambda k=k: ask(k, zero_copy=True), ["zero_copy=True", f"False with {k}=True"]) for k in KEYWORDS),
        (lambda: ask("use_fp8", hidden=200), ["use_fp8=True", "False with hidden=200, which is no multiple of 128"]),
        (lambda: ask("use_mxfp8", hidden=48), ["use_mxfp8=True", "hidden=48, which is no multiple of 32"]),
        (lambda: ask("use_nvfp4", hidden=96), ["use_nvfp4=True", "hidden=96, which is no multiple of 64"]),
        (lambda: ask("use_logfmt", hidden=256), ["use_logfmt=True", "which is no multiple of 512 up to 32768"]),
        (lambda: ask("use_logfmt", hidden=1 << 16), ["use_logfmt=True", "hidden=65536", "up to 32768"]),
    ]
    for asked, words in refused:
        assert_refused(asked, words)
