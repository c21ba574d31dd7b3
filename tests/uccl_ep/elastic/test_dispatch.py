"""ElasticBuffer.dispatch: every form of result against the oracle, on one node and on several."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.uccl_ep.elastic.worlds import HIDDEN, LOCAL, MAX_TOKENS, TOPK, Expected, a_case, expected, on_ranks
from tests.uccl_ep.ranks import assert_refused, same
from tests.uccl_ep.throughput.test_bounded import kept_ids
from uccl_ep import EventHandle, SettingsMismatch, ThreadGroup, reference
from uccl_ep.elastic import ElasticBuffer, EPHandle
from uccl_ep.reference import RandomCase

WORLDS = [(1, 0), (3, 0), (4, 2), (5, 2)]
TRAFFIC = ("some_unused", "uniform", "no_tokens", "all_unused", "hot_expert")


def options_of(c: RandomCase, rank: int) -> dict[str, Any]:
    return {
        "topk_idx": c.topk_idx[rank],
        "topk_weights": c.topk_weights[rank],
        "num_experts": c.shape.num_experts,
    }


def assert_handle(handle: EPHandle, want: Expected, n: int, alignment: int) -> None:
    real = want.tokens.num_rows
    counts, aligned = want.counts(), want.aligned(alignment)
    assert handle.num_recv_tokens == n and handle.psum_num_recv_tokens_per_scaleup_rank.dtype == torch.int32
    ranks = handle.psum_num_recv_tokens_per_scaleup_rank.numel()
    per_rank = torch.bincount(want.tokens.src_rank.long(), minlength=ranks)
    assert handle.psum_num_recv_tokens_per_scaleup_rank.tolist() == per_rank.cumsum(0).tolist()
    assert handle.num_unaligned_recv_tokens_per_expert.tolist() == counts
    ends = torch.tensor(aligned).cumsum(0)
    wanted = (ends - torch.tensor(aligned) + torch.tensor(counts)) if handle.do_expand else ends
    assert handle.psum_num_recv_tokens_per_expert.tolist() == wanted.tolist()
    assert handle.psum_num_recv_tokens_per_expert.dtype == torch.int32
    metadata = handle.recv_src_metadata
    assert metadata.shape == (n, TOPK + 2) and metadata.dtype == torch.int32
    assert metadata[:real, 0].tolist() == want.source.tolist()
    if handle.do_expand:
        places = {choice: row for row, choice in enumerate(want.choices(alignment)) if choice is not None}
        rows = [[places.get((token, k), -1) for k in range(TOPK)] for token in range(real)]
        assert metadata[:real, 2:].tolist() == rows and bool((metadata[real:, 2:] == -1).all())


@pytest.mark.parametrize("ranks, per_node", WORLDS)
def test_dispatch_plain(variables: Any, ranks: int, per_node: int) -> None:
    variables(RANKS_PER_NODE=per_node)
    cases = [a_case(10 + turn, ranks, kind) for turn, kind in enumerate(TRAFFIC)]

    def body(group: ThreadGroup, buffer: ElasticBuffer) -> None:
        rank = group.rank()
        for turn, c in enumerate(cases):
            want, alignment = expected(c)[rank], (1, 7)[turn % 2]
            x, idx, weights, handle, event = buffer.dispatch(
                c.x[rank], **options_of(c, rank), expert_alignment=alignment, num_sms=8 * (turn % 2)
            )
            assert same(x, want.tokens.recv_x) and event.event is None
            assert want.tokens.recv_topk_idx is not None and same(idx, want.tokens.recv_topk_idx)
            assert weights is not None and same(weights, want.weights)  # unmasked, unlike V1's
            assert handle.num_recv_tokens_per_expert_list == want.aligned(alignment)
            assert handle.num_expanded_tokens == want.tokens.num_rows and not handle.do_expand
            assert_handle(handle, want, want.tokens.num_rows, alignment)

    on_ranks(ranks, body)


@pytest.mark.parametrize("ranks, per_node", WORLDS)
def test_dispatch_expanded_fp8(variables: Any, ranks: int, per_node: int) -> None:
    variables(RANKS_PER_NODE=per_node)
    cases = [a_case(30 + turn, ranks, kind) for turn, kind in enumerate(TRAFFIC)]

    def body(group: ThreadGroup, buffer: ElasticBuffer) -> None:
        rank = group.rank()
        for turn, c in enumerate(cases):
            fp8 = [reference.cast_fp8(x) for x in c.x]
            want, alignment, columns = expected(c, fp8)[rank], (1, 8, 5)[turn % 3], turn % 2 == 0
            data, scales = fp8[rank]
            (x, sf), idx, weights, handle, _ = buffer.dispatch(
                (data, scales.T.contiguous().T), **options_of(c, rank), expert_alignment=alignment, do_expand=True,
                do_zero_padding=True, use_tma_aligned_col_major_sf=columns,
            )  # fmt: skip
            choices = want.choices(alignment)
            assert idx is None and weights is not None and weights.shape == (len(choices),)
            assert x.shape[0] == sf.shape[0] == handle.num_expanded_tokens == len(choices)
            assert want.tokens.recv_scales is not None
            for row, choice in enumerate(choices):
                token, k = choice or (0, 0)
                filled = int(choice is not None)
                assert same(x[row], want.tokens.recv_x[token] if filled else torch.zeros_like(x[row]))
                assert same(sf[row], want.tokens.recv_scales[token] if filled else torch.zeros_like(sf[row]))
                assert weights[row] == (want.weights[token, k] if filled else 0)
            stride = (1, -(-sf.shape[0] // 4) * 4) if columns else (sf.shape[1], 1)
            assert sf.stride() == stride or sf.shape[0] < 2
            assert handle.num_recv_tokens_per_expert_list == want.aligned(alignment)
            assert_handle(handle, want, want.tokens.num_rows, alignment)

    on_ranks(ranks, body)


@pytest.mark.parametrize("ranks, per_node", [(3, 0), (4, 2)])
@pytest.mark.parametrize("expanded", [False, True])
def test_dispatch_without_cpu_sync(variables: Any, ranks: int, per_node: int, expanded: bool) -> None:
    variables(RANKS_PER_NODE=per_node)
    c = a_case(50, ranks)

    def body(group: ThreadGroup, buffer: ElasticBuffer) -> None:
        rank = group.rank()
        want, worst = expected(c)[rank], ranks * MAX_TOKENS
        x, idx, weights, handle, _ = buffer.dispatch(
            c.x[rank], **options_of(c, rank), do_cpu_sync=False, do_expand=expanded, expert_alignment=4
        )
        real = int(handle.psum_num_recv_tokens_per_scaleup_rank[-1])
        assert real == want.tokens.num_rows and handle.num_recv_tokens_per_expert_list == []
        assert_handle(handle, want, worst, 4)
        assert weights is not None
        if not expanded:
            assert x.shape[0] == worst and same(x[:real], want.tokens.recv_x) and same(weights[:real], want.weights)
            assert idx is not None and bool((idx[real:] == -1).all())
            return
        assert x.shape[0] == weights.shape[0] == -(-(worst * min(TOPK, LOCAL) + 3 * LOCAL) // 4) * 4
        for row, choice in enumerate(want.choices(4)):
            if choice is not None:
                assert same(x[row], want.tokens.recv_x[choice[0]]) and weights[row] == want.weights[choice]

    on_ranks(ranks, body)


@pytest.mark.mostly_slow(quick=3)
@pytest.mark.parametrize("ranks, per_node", [(3, 0), (4, 2)])
@pytest.mark.parametrize("expanded", [False, True])
@pytest.mark.parametrize("many_sums", [False, True])
def test_dispatch_bounded_receive_drops(
    variables: Any, ranks: int, per_node: int, expanded: bool, many_sums: bool
) -> None:
    """As if what does not fit had not been routed; test_bounded.py of the throughput calls has the rule."""
    variables(RANKS_PER_NODE=per_node)
    turns = [(a_case(50 + turn, ranks, kind), turn) for turn, kind in enumerate(("uniform", "hot_expert", "no_tokens"))]

    def body(group: ThreadGroup, buffer: ElasticBuffer) -> None:
        rank = group.rank()
        for c, turn in turns:
            totals = [want.tokens.num_rows for want in expected(c)]
            most = [max(1, total - 3 * turn - r) for r, total in enumerate(totals)]
            kept, _ = kept_ids(c, most)
            x, idx, weights, handle, _ = buffer.dispatch(
                c.x[rank], **options_of(c, rank), do_cpu_sync=False, do_expand=expanded,
                max_recv_tokens_per_rank=most[rank], overflow_policy="drop",
            )  # fmt: skip
            plain_x, plain_idx, plain_weights, plain, _ = buffer.dispatch(
                c.x[rank], **{**options_of(c, rank), "topk_idx": kept[rank]}, do_expand=expanded
            )
            assert handle.recv_totals is not None and handle.recv_totals.tolist() == totals
            assert bool(handle.overflow) == any(a > b for a, b in zip(totals, most, strict=True))
            n = len(plain_x)
            assert same(x[:n], plain_x) and weights is not None and same(weights[:n], plain_weights)
            assert expanded or (idx is not None and same(idx[:n], plain_idx) and len(x) == most[rank])
            rows = torch.randn(len(x), HIDDEN, generator=torch.Generator().manual_seed(rank)).bfloat16()
            given = weights if many_sums or not expanded else None
            got, plainly = (
                buffer.combine(rows[:size].contiguous(), of, None if given is None else given[:size].contiguous())
                for size, of in ((len(x), handle), (n, plain))
            )
            assert same(got[0], plainly[0])
            if given is not None:
                assert same(got[1], plainly[1])

    on_ranks(ranks, body, allow_multiple_reduction=many_sums)


def test_dispatch_bounded_receive_is_refused_where_it_means_nothing(variables: Any) -> None:
    variables(TIMEOUT_S=5)
    c = a_case(50, 1, "uniform")

    def body(group: ThreadGroup, buffer: ElasticBuffer) -> None:
        options = {**options_of(c, 0), "do_cpu_sync": False}
        handle = buffer.dispatch(c.x[0], **options)[3]
        for bad, words in (
            ({**options, "overflow_policy": "drop"}, "overflow_policy"),
            ({**options, "overflow_policy": 1, "max_recv_tokens_per_rank": 4}, "overflow_policy"),
            ({**options, "max_recv_tokens_per_rank": 0}, "max_recv_tokens_per_rank"),
            ({**options, "max_recv_tokens_per_rank": MAX_TOKENS + 1}, "max_recv_tokens_per_rank"),
            ({**options_of(c, 0), "max_recv_tokens_per_rank": 4}, "do_cpu_sync"),
            ({"handle": handle, "max_recv_tokens_per_rank": 4}, "max_recv_tokens_per_rank"),
        ):
            assert_refused(lambda a=bad: buffer.dispatch(c.x[0], **a), [words])
        with pytest.raises(SettingsMismatch, match="max_recv_tokens_per_rank"):  # the trap
            buffer.dispatch(c.x[0], **options, max_recv_tokens_per_rank=1)

    on_ranks(1, body)


@pytest.mark.parametrize("expanded", [False, True])
def test_dispatch_cached(variables: Any, expanded: bool) -> None:
    variables(RANKS_PER_NODE=2)
    c, other = a_case(60, 4), a_case(60, 4)
    for rank, x in enumerate(other.x):
        other.x[rank] = -x
        other.topk_weights[rank] = other.topk_weights[rank] + 1

    def body(group: ThreadGroup, buffer: ElasticBuffer) -> None:
        rank = group.rank()
        first = buffer.dispatch(c.x[rank], **options_of(c, rank), do_expand=expanded, expert_alignment=2)
        handle, want = first[3], expected(other)[rank]
        x, idx, weights, again, _ = buffer.dispatch(
            other.x[rank], topk_weights=other.topk_weights[rank], handle=handle, num_sms=handle.num_sms,
            do_cpu_sync=False, expert_alignment=2, do_zero_padding=expanded, do_expand=expanded,
        )  # fmt: skip
        assert again is handle and weights is not None
        if expanded:
            choices = want.choices(2)
            assert idx is None and x.shape[0] == len(choices)
            for row, choice in enumerate(choices):
                filled = choice is not None
                assert same(x[row], want.tokens.recv_x[choice[0]] if filled else torch.zeros_like(x[row]))  # type: ignore[index]
        else:
            assert same(x, want.tokens.recv_x) and same(weights, want.weights) and same(idx, first[1])
        compact = buffer.dispatch(other.x[rank], handle=handle)  # also of an expanded handle, as upstream
        assert same(compact[0], want.tokens.recv_x) and same(compact[1], want.tokens.recv_topk_idx)
        assert compact[2] is None and compact[3] is handle
        bad: dict[str, Any]
        for bad, words in (
            ({"topk_idx": c.topk_idx[rank]}, "do_cpu_sync must be left out with a handle; got one of them."),
            ({"do_cpu_sync": True}, "do_cpu_sync must be left out with a handle; got one of them."),
            ({"expert_alignment": 3}, "expert_alignment=3"),
            ({"num_experts": 7}, "num_experts=7"),
            ({"num_max_tokens_per_rank": 7}, "num_max_tokens_per_rank=7"),
            ({"do_zero_padding": True}, "do_zero_padding=True"),
        ):
            assert_refused(lambda bad=bad: buffer.dispatch(c.x[rank], handle=handle, **bad), [words])

    on_ranks(4, body)


def test_dispatch_is_the_same_every_time_and_counts(variables: Any) -> None:
    variables(RANKS_PER_NODE=2, SHUFFLE_SEED=5)
    c = a_case(70, 4)

    def body(group: ThreadGroup, buffer: ElasticBuffer) -> None:
        rank = group.rank()
        stats = torch.full((LOCAL,), 2, dtype=torch.int32)
        ids = c.topk_idx[rank].clone()
        options = {**options_of(c, rank), "topk_idx": ids, "do_expand": True, "do_zero_padding": True}
        results = [
            buffer.dispatch(c.x[rank], **options, cumulative_local_expert_recv_stats=stats, num_sms=sms)
            for sms in (4, 20, 8)
        ]
        for x, _, weights, _, _ in results:
            assert same(x, results[0][0]) and same(weights, results[0][2])
        assert stats.tolist() == [2 + 3 * n for n in expected(c)[rank].counts()]
        ids.fill_(-1)  # the handle has its own
        assert torch.equal(results[0][3].topk_idx, c.topk_idx[rank])
        shared = buffer.dispatch(c.x[rank], **options, do_handle_copy=False)[3]
        assert shared.topk_idx is ids

    on_ranks(4, body, deterministic=True)


def test_dispatch_events(variables: Any) -> None:
    variables(RANKS_PER_NODE=2)
    c = a_case(80, 2)

    def body(group: ThreadGroup, buffer: ElasticBuffer) -> None:
        rank = group.rank()
        x, _, _, _, event = buffer.dispatch(
            c.x[rank], **options_of(c, rank), previous_event=buffer.capture(), allocate_on_comm_stream=True,
            previous_event_before_epilogue=EventHandle(), async_with_compute_stream=True,
        )  # fmt: skip
        assert event.event is not None
        event.current_stream_wait()
        assert same(x, expected(c)[rank].tokens.recv_x)

    on_ranks(2, body)


def test_dispatch_refusals(variables: Any) -> None:
    variables(RANKS_PER_NODE=2)
    c = a_case(90, 2)

    def body(group: ThreadGroup, buffer: ElasticBuffer) -> None:
        rank = group.rank()
        x, options = torch.zeros(4, 256).bfloat16(), {"topk_idx": torch.zeros(4, 2).long(), "num_experts": 6}
        float8 = x.to(torch.float8_e4m3fn)
        many = torch.zeros(MAX_TOKENS + 1, 256).bfloat16()
        ids = torch.zeros(MAX_TOKENS + 1, 2).long()
        bad: list[tuple[Any, dict[str, Any], str]] = [
            (x.float(), {}, "dispatch: x must be of bf16 rows, or of one-byte rows with scales as x[1]; got "),
            (x[:, :30].contiguous(), {}, "x must be of rows of a multiple of 16 bytes; got a tensor of shape (4, 30)"),
            (float8, {}, "float8"),
            (
                (x, x),
                {},
                "a one-byte dtype such as float8_e4m3fn when scales are given; got a tensor of shape (4, 256)",
            ),
            ((float8, torch.zeros(4, 2, dtype=torch.float64)), {}, "4-byte"),
            ((float8, torch.zeros(3, 2)), {}, "4 rows"),
            (x, {"topk_idx": None}, "topk_idx"),
            (x, {"num_experts": None}, "num_experts=None"),
            (x, {"num_experts": 5}, "num_experts=5"),
            (x, {"expert_alignment": 0}, "expert_alignment=0"),
            (x, {"do_zero_padding": True}, "do_zero_padding"),
            (x, {"topk_weights": torch.zeros(4, 3)}, "topk_weights"),
            (x, {"topk_idx": options["topk_idx"][:3]}, "4 rows"),
            (x, {"previous_event": EventHandle()}, "allocate_on_comm_stream"),
            (x, {"previous_event": "now", "allocate_on_comm_stream": True}, "previous_event='now'"),
            (x, {"previous_event_before_epilogue": "now"}, "previous_event_before_epilogue='now'"),
            (x, {"cumulative_local_expert_recv_stats": torch.zeros(2)}, "cumulative"),
            (x, {"handle": "no"}, "handle='no'"),
            (
                many,
                {"topk_idx": ids},
                f"x must be of up to num_max_tokens_per_rank=20 rows; got a tensor of shape {tuple(many.shape)}",
            ),
        ]
        for data, changes, words in bad:
            arguments = {**options, **changes}
            if "handle" in changes:
                arguments.pop("topk_idx")
            assert_refused(lambda data=data, arguments=arguments: buffer.dispatch(data, **arguments), [words])
        got = buffer.dispatch(c.x[rank], **options_of(c, rank))
        assert same(got[0], expected(c)[rank].tokens.recv_x)

    on_ranks(2, body)
