"""ElasticBuffer.combine: sums and their roundings against the oracle and plain torch, weights, biases, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.uccl_ep.elastic.worlds import HIDDEN, LOCAL, MAX_TOKENS, TOPK, Expected, a_case, expected, on_ranks
from tests.uccl_ep.ranks import assert_refused, same
from tests.uccl_ep.throughput.test_arguments import unfit
from uccl_ep import ThreadGroup, reference, run_ranks
from uccl_ep.elastic import ElasticBuffer, EPBuffer, HybridEPBuffer
from uccl_ep.reference import RandomCase

Tensor = torch.Tensor
WORLDS = [(1, 0), (3, 0), (4, 2), (5, 2)]


def random_rows(seed: int, rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    size = torch.exp2(torch.randint(-4, 5, (rows, 1), generator=generator).float())
    return (torch.randn(rows, HIDDEN, generator=generator) * size).bfloat16()


def biases(c: RandomCase, turn: int) -> list[Any]:
    generator = torch.Generator().manual_seed(turn)
    made = [tuple(torch.randn(x.shape, generator=generator).bfloat16() for _ in range(2)) for x in c.x]
    return [None if turn % 3 == 0 else pair[0] if turn % 3 == 1 else pair for pair in made]


def row_of(want: Expected, alignment: int) -> dict[tuple[int, int], int]:
    """The expanded row of each (token here, k)."""
    return {choice: row for row, choice in enumerate(want.choices(alignment)) if choice is not None}


def reduced(want: Expected, rows: Tensor, alignment: int) -> Tensor:
    """Expanded rows, summed per token in f32 over ascending k, rounded."""
    places, total = row_of(want, alignment), torch.zeros(want.tokens.num_rows, HIDDEN)
    for (token, _), row in sorted(places.items()):
        total[token] += rows[row].float()
    return total.bfloat16()


def summed_once(
    c: RandomCase, wants: list[Expected], rows: list[Tensor], bias: Any, rank: int, expanded: bool
) -> Tensor:
    """Bias, then rows in ascending top-k position, in f32, rounded once."""
    total = torch.zeros(c.x[rank].shape)
    for part in (bias,) if isinstance(bias, Tensor) else bias or ():
        total += part.float()
    local = c.shape.num_experts // c.shape.num_ranks
    for token in range(total.shape[0]):
        owners = [expert // local for expert in c.topk_idx[rank][token].tolist()]  # -1 stays -1
        for k, owner in enumerate(owners):
            if owner < 0 or (not expanded and owner in owners[k + 1 :]):  # a rank's row stands at its last position
                continue
            want = wants[owner].tokens
            here = int(((want.src_rank == rank) & (want.src_token == token)).nonzero())
            row = row_of(wants[owner], 2)[here, k] if expanded else here
            total[token] += rows[owner][row].float()
    return total.bfloat16()


@pytest.mark.mostly_slow(quick=3)
@pytest.mark.parametrize("ranks, per_node", WORLDS)
@pytest.mark.parametrize("expanded", [False, True])
def test_combine_sums_by_rank(variables: Any, ranks: int, per_node: int, expanded: bool) -> None:
    variables(RANKS_PER_NODE=per_node)
    cases = [
        a_case(20 + t, ranks, kind) for t, kind in enumerate(("some_unused", "uniform", "no_tokens", "all_unused"))
    ]

    def body(group: ThreadGroup, buffer: ElasticBuffer) -> None:
        rank = group.rank()
        for turn, c in enumerate(cases):
            wants, bias = expected(c), biases(c, turn)
            counts = [len(w.choices(2)) if expanded else w.tokens.num_rows for w in wants]
            rows = [random_rows(1000 * turn + r, n) for r, n in enumerate(counts)]
            _, _, weights, handle, _ = buffer.dispatch(
                c.x[rank], c.topk_idx[rank], c.topk_weights[rank], num_experts=c.shape.num_experts,
                expert_alignment=2, do_expand=expanded,
            )  # fmt: skip
            combined, combined_weights, event = buffer.combine(rows[rank], handle, weights, bias[rank])
            given = [reduced(w, x, 2) for w, x in zip(wants, rows, strict=True)] if expanded else rows
            sums, _ = reference.throughput_combine(given, [w.tokens for w in wants], None, bias, per_node or None)
            assert same(combined, sums[rank]) and event.event is None
            own = torch.where(c.topk_idx[rank] >= 0, c.topk_weights[rank], 0.0)
            assert combined_weights is not None and same(combined_weights, own)

    on_ranks(ranks, body)


@pytest.mark.parametrize("ranks, per_node", [(3, 0), (4, 2)])
@pytest.mark.parametrize("expanded", [False, True])
def test_combine_sums_all_rows_once(variables: Any, ranks: int, per_node: int, expanded: bool) -> None:
    variables(RANKS_PER_NODE=per_node)
    cases = [a_case(40 + turn, ranks, kind) for turn, kind in enumerate(("some_unused", "uniform", "hot_expert"))]

    def body(group: ThreadGroup, buffer: ElasticBuffer) -> None:
        rank = group.rank()
        for turn, c in enumerate(cases):
            wants, bias = expected(c), biases(c, turn)[rank]
            counts = [len(w.choices(2)) if expanded else w.tokens.num_rows for w in wants]
            rows = [random_rows(2000 * turn + r, n) for r, n in enumerate(counts)]
            sent = buffer.dispatch(
                c.x[rank], c.topk_idx[rank], c.topk_weights[rank], num_experts=c.shape.num_experts,
                expert_alignment=2, do_expand=expanded, do_cpu_sync=expanded,
            )  # fmt: skip
            x = rows[rank]
            if not expanded:  # the worst size: what lies beyond the real rows must not count
                x = torch.cat([x, torch.full((sent[0].shape[0] - x.shape[0], HIDDEN), float("nan")).bfloat16()])
            weights = None if expanded else sent[2]
            combined, combined_weights, _ = buffer.combine(x, sent[3], weights, bias)
            assert same(combined, summed_once(c, wants, rows, bias, rank, expanded))
            if weights is not None:
                own = torch.where(c.topk_idx[rank] >= 0, c.topk_weights[rank], 0.0)
                assert combined_weights is not None and same(combined_weights, own)
            if expanded:
                assert_refused(lambda x=x, sent=sent: buffer.combine(x, sent[3], sent[2]), ["topk_weights"])

    on_ranks(ranks, body, allow_multiple_reduction=False)


@pytest.mark.parametrize("ranks, per_node", [(3, 0), (5, 0), (5, 2)])
def test_combine_by_rank_beside_upstreams_order(variables: Any, ranks: int, per_node: int) -> None:
    """Upstream adds ranks by top-k position. On one node the same bits, up to three ranks a token and two biases;
    with several nodes one more rounding, of each node's sum. README.md of uccl_ep/elastic has the size of it."""
    variables(RANKS_PER_NODE=per_node)
    cases = [a_case(80 + turn, ranks, "uniform") for turn in range(3)]

    def body(group: ThreadGroup, buffer: ElasticBuffer) -> int:
        rank, differ = group.rank(), 0
        for turn, c in enumerate(cases):
            wants, bias = expected(c), biases(c, turn)[rank]
            rows = [random_rows(3000 * turn + r, w.tokens.num_rows) for r, w in enumerate(wants)]
            handle = buffer.dispatch(
                c.x[rank], c.topk_idx[rank], c.topk_weights[rank], num_experts=c.shape.num_experts
            )[3]
            combined, _, _ = buffer.combine(rows[rank], handle, bias=bias)
            wanted = summed_once(c, wants, rows, bias, rank, False)
            sizes = None if bias is None else tuple(b.abs() for b in ((bias,) if isinstance(bias, Tensor) else bias))
            magnitude = summed_once(c, wants, [x.abs() for x in rows], sizes, rank, False).float()
            assert bool(((combined.float() - wanted.float()).abs() <= 2**-6 * magnitude).all())
            differ += int((combined != wanted).sum())
        return differ

    differ = sum(on_ranks(ranks, body))
    assert differ > 0 if per_node else differ == 0


def test_combine_without_cpu_sync_expanded(variables: Any) -> None:
    variables(RANKS_PER_NODE=2)
    c = a_case(60, 4)

    def body(group: ThreadGroup, buffer: ElasticBuffer) -> None:
        rank = group.rank()
        x, _, weights, handle, _ = buffer.dispatch(
            c.x[rank], c.topk_idx[rank], c.topk_weights[rank], num_experts=c.shape.num_experts, do_expand=True,
            do_cpu_sync=False,
        )  # fmt: skip
        combined, combined_weights, event = buffer.combine(
            x, handle, weights, async_with_compute_stream=True, previous_event=buffer.capture(),
            allocate_on_comm_stream=True,
        )  # fmt: skip
        assert event.event is not None
        event.current_stream_wait()
        wants = expected(c)
        given = []
        for w in wants:
            times = (w.tokens.recv_topk_idx >= 0).sum(1, keepdim=True)  # type: ignore[operator]
            given.append((w.tokens.recv_x.float() * times).bfloat16())
        sums, _ = reference.throughput_combine(given, [w.tokens for w in wants], None, None, 2)
        assert torch.allclose(combined.float(), sums[rank].float(), rtol=2e-2, atol=0)
        own = torch.where(c.topk_idx[rank] >= 0, c.topk_weights[rank], 0.0)
        assert combined_weights is not None and same(combined_weights, own)

    on_ranks(4, body)


def test_combine_refusals(variables: Any) -> None:
    variables(RANKS_PER_NODE=2)
    c = a_case(70, 2, "uniform")

    def body(group: ThreadGroup, buffer: ElasticBuffer) -> None:
        rank = group.rank()
        x, _, weights, handle, _ = buffer.dispatch(
            c.x[rank], c.topk_idx[rank], c.topk_weights[rank], num_experts=c.shape.num_experts
        )
        bad: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
            ((x, "no"), {}, "handle='no'"),
            ((torch.cat([x, x[:1], x.new_zeros(1, HIDDEN)]), handle), {}, "rows, as the handle's"),
            ((x.float(), handle), {}, "float32"),
            ((x, handle, torch.zeros(x.shape[0], TOPK + 1)), {}, "topk_weights"),
            ((x, handle), {"num_sms": -1}, "num_sms=-1"),
            ((x, handle), {"bias": torch.zeros(1, 2, 3)}, "bias"),
            ((x, handle), {"previous_event": buffer.capture()}, "allocate_on_comm_stream"),
        ]
        for arguments, names, words in bad:
            assert_refused(lambda arguments=arguments, names=names: buffer.combine(*arguments, **names), [words])
        assert buffer.combine(x, handle, weights)[0].shape == c.x[rank].shape

    on_ranks(2, body)


@pytest.mark.parametrize("many_sums", [True, False])
def test_combine_writes_where_the_caller_says(variables: Any, many_sums: bool) -> None:
    """Of every interface with this combine: V2, V2.5, hybrid-ep."""
    variables(RANKS_PER_NODE=2)
    c = a_case(77, 4)

    def body(group: ThreadGroup) -> None:
        rank, sizes = group.rank(), (None, MAX_TOKENS, HIDDEN, TOPK)
        made = EPBuffer(group, *sizes, allow_multiple_reduction=many_sums, explicitly_destroy=True)
        hybrid = HybridEPBuffer(group, HIDDEN, MAX_TOKENS, LOCAL)
        ids, weights = c.topk_idx[rank], c.topk_weights[rank]
        rows, _, _, handle, _ = made.dispatch(c.x[rank], ids, weights, num_experts=c.shape.num_experts, do_expand=True)
        bias, out = torch.ones_like(c.x[rank]), torch.full_like(c.x[rank], 7.0)
        wanted = made.combine(rows, handle, bias=bias)[0]
        got = made.combine(rows, handle, bias=bias, async_with_compute_stream=True, defer_epilogue=True, out=out).wait()
        assert got[0] is out and same(out, wanted)
        got = made._elastic.combine(rows, handle, bias=bias, out=out.fill_(7.0))
        assert got[0] is out and same(out, wanted)
        tokens = (c.x[rank].shape[0], HIDDEN)
        for bad, words in unfit(tokens) if tokens[0] else ():
            assert_refused(lambda b=bad: made.combine(rows, handle, out=b), words)
        if len(bias):
            assert_refused(lambda: made.combine(rows, handle, bias=bias, out=bias), ["out=a tensor that overlaps bias"])
        rows, _, _, _, kept = hybrid.dispatch_with_permute(hidden=c.x[rank], topk_idx=ids, topk_weights=weights)
        wanted = hybrid.combine_with_unpermute(hidden=rows, handle=kept)[0]
        assert hybrid.combine_with_unpermute(hidden=rows, handle=kept, out=out.fill_(7.0))[0] is out
        assert same(out, wanted)
        if 0 < len(out) <= len(rows):
            assert_refused(
                lambda: hybrid.combine_with_unpermute(hidden=rows, handle=kept, out=rows[: len(out)]),
                ["overlaps hidden"],
            )
        group.barrier()
        made.destroy()

    run_ranks(4, body)
