"""Expanded dispatches into the caller's tensors: the rows of a plain dispatch, in place, or a refusal; and overflow."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.uccl_ep.elastic.test_dispatch import options_of
from tests.uccl_ep.elastic.worlds import HIDDEN, LOCAL, TOPK, a_case, expected, on_ranks
from tests.uccl_ep.ranks import assert_refused, same
from uccl_ep import InvalidArgument, ThreadGroup, reference
from uccl_ep.elastic import ElasticBuffer

ROWS = 150  # more than any rank gets here
WORLDS = [(1, 0), (3, 0), (4, 2)]


def targets(rows: int, fp8: bool, columns: bool = False) -> dict[str, torch.Tensor]:
    x = torch.full((rows, HIDDEN), 7.0).to(torch.float8_e4m3fn if fp8 else torch.bfloat16)
    made = {"recv_x_out": x, "recv_topk_weights_out": torch.full((rows,), 7.0)}
    if fp8:
        scales = torch.full((rows, HIDDEN // 128), 7.0)
        made["recv_sf_out"] = scales.T.contiguous().T if columns else scales
    return made


@pytest.mark.mostly_slow(quick=4)
@pytest.mark.parametrize("ranks, per_node", WORLDS)
@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("cpu_sync", [False, True])
def test_into_writes_what_a_plain_dispatch_returns(
    variables: Any, ranks: int, per_node: int, fp8: bool, cpu_sync: bool
) -> None:
    variables(RANKS_PER_NODE=per_node)
    cases = [a_case(300 + turn, ranks, kind) for turn, kind in enumerate(("some_unused", "no_tokens", "hot_expert"))]

    def body(group: ThreadGroup, buffer: ElasticBuffer) -> None:
        rank = group.rank()
        for turn, c in enumerate(cases):
            x: Any = reference.cast_fp8(c.x[rank]) if fp8 else c.x[rank]
            options = {**options_of(c, rank), "expert_alignment": (1, 4)[turn % 2], "do_zero_padding": True}
            want, _, want_weights, plain, _ = buffer.dispatch(x, **options, do_expand=True)
            out = targets(ROWS, fp8, columns=turn % 2 == 1)
            got, idx, weights, handle, event = buffer.dispatch_expanded_into(x, **options, **out, do_cpu_sync=cpu_sync)
            parts, wanted = (got, want) if fp8 else ((got,), (want,))
            assert idx is None and event.event is None and weights is out["recv_topk_weights_out"]
            assert parts[0] is out["recv_x_out"] and (not fp8 or parts[1] is out["recv_sf_out"])
            for part, of in zip((*parts, weights), (*wanted, want_weights), strict=True):
                assert same(part[: len(of)], of) and not part[len(of) :].float().any()
            assert same(handle.recv_src_metadata[: len(plain.recv_src_metadata)], plain.recv_src_metadata)
            assert handle.num_expanded_tokens == ROWS and not handle.overflow
            needed = int(plain.expanded_rows.amax()) + 1 if plain.expanded_rows.numel() else 0
            assert int(handle.num_expanded_rows_needed) == needed

            rows = torch.randn(ROWS, HIDDEN, generator=torch.Generator().manual_seed(turn)).bfloat16()
            sums = buffer.combine(rows, handle)[0]
            assert same(sums, buffer.combine(rows[: len(plain_rows(want))].contiguous(), plain)[0])
            again = torch.full((ROWS, HIDDEN), 7.0).bfloat16()
            back = buffer.dispatch_cached_expanded_into(sums, handle=handle, recv_x_out=again)
            assert back[0] is again and back[1] is back[2] is None and back[3] is handle
            cached = buffer.dispatch(sums, handle=plain, do_expand=True)[0]
            filled = [row for row, choice in enumerate(expected(c)[rank].choices((1, 4)[turn % 2])) if choice]
            assert same(again[filled], cached[filled])

    on_ranks(ranks, body)


def plain_rows(received: Any) -> torch.Tensor:
    rows: torch.Tensor = received[0] if isinstance(received, tuple) else received
    return rows


def test_into_rows_that_do_not_fit_are_left_out_and_told(variables: Any) -> None:
    """A bounded receive: what Megatron does is to enlarge the budget and to replay the step."""
    variables(RANKS_PER_NODE=2)
    c = a_case(330, 4, "hot_expert")

    def body(group: ThreadGroup, buffer: ElasticBuffer) -> int:
        rank = group.rank()
        options = options_of(c, rank)
        needed = sum(expected(c)[rank].counts())
        room = needed // 2
        out = targets(room, False)
        got, _, _, handle, _ = buffer.dispatch_expanded_into(c.x[rank], **options, **out, do_cpu_sync=False)
        plain = buffer.dispatch(c.x[rank], **options, do_expand=True)
        assert bool(handle.overflow) == (room < needed) and int(handle.num_expanded_rows_needed) == needed
        assert same(got, plain[0][:room]) and handle.num_recv_tokens_per_expert_list == []
        # Rows that are not there add nothing; the others are summed as ever.
        rows = torch.ones(needed, HIDDEN).bfloat16()
        rows[room:] = 0
        assert same(buffer.combine(rows[:room].clone(), handle)[0], buffer.combine(rows, plain[3])[0])
        more = targets(int(handle.num_expanded_rows_needed), False)
        again = buffer.dispatch_expanded_into(c.x[rank], **options, **more, do_cpu_sync=False)
        assert same(again[0], plain[0]) and not again[3].overflow
        small = torch.zeros(room, HIDDEN).bfloat16()
        told = f"of {needed} rows or more here"
        with_sync = {**options, "recv_x_out": small, "recv_topk_weights_out": torch.zeros(room)}
        if needed:
            assert_refused(lambda: buffer.dispatch_expanded_into(c.x[rank], **with_sync), ["recv_x_out=", told])
        else:
            buffer.dispatch_expanded_into(c.x[rank], **with_sync)
        return needed

    assert max(on_ranks(4, body)) > 1


def test_into_drops_tokens_that_a_bound_leaves_out(variables: Any) -> None:
    """As dispatch with the same bound, and what its rows do not fit into is left out beyond that."""
    variables(RANKS_PER_NODE=2)
    c = a_case(335, 4, "hot_expert")

    def body(group: ThreadGroup, buffer: ElasticBuffer) -> tuple[bool, bool]:
        rank = group.rank()
        totals = [want.tokens.num_rows for want in expected(c)]
        bound = {"max_recv_tokens_per_rank": max(1, totals[rank] - 3 - rank), "overflow_policy": "drop"}
        options = {**options_of(c, rank), "do_cpu_sync": False, **bound}
        plain_x, _, plain_weights, plain, _ = buffer.dispatch(c.x[rank], **options, do_expand=True)
        needed = int(plain.psum_num_recv_tokens_per_expert[-1])
        dropped = any(total > max(1, total - 3 - r) for r, total in enumerate(totals))
        for room in (needed + 2, max(1, needed // 2)):
            out = targets(room, False)
            got, _, weights, handle, _ = buffer.dispatch_expanded_into(c.x[rank], **options, **out)
            n = min(room, needed)
            assert plain_weights is not None and weights is not None
            assert same(got[:n], plain_x[:n]) and same(weights[:n], plain_weights[:n])
            assert handle.recv_totals is not None and handle.recv_totals.tolist() == totals
            assert handle.num_expanded_rows_needed is not None and int(handle.num_expanded_rows_needed) == needed
            assert bool(handle.overflow) == (dropped or room < needed)
        return dropped, needed > 0

    assert (True, True) in on_ranks(4, body)


def test_into_refuses_what_it_cannot_write_to(variables: Any) -> None:
    variables()
    c = a_case(340, 2)

    def body(group: ThreadGroup, buffer: ElasticBuffer) -> None:
        rank = group.rank()
        x, options = c.x[rank], options_of(c, rank)
        wide, flat = torch.zeros(ROWS + 1, HIDDEN + 8).bfloat16(), torch.zeros(ROWS * HIDDEN + 8).bfloat16()
        held = torch.zeros(ROWS, HIDDEN).bfloat16()
        held[: len(x)] = x
        weights = torch.zeros(ROWS)
        good = {"recv_x_out": torch.zeros(ROWS, HIDDEN).bfloat16(), "recv_topk_weights_out": weights}
        fp8, scales = reference.cast_fp8(x)
        bad: list[tuple[Any, dict[str, Any], list[str]]] = [
            (x, {"recv_x_out": None}, ["recv_x_out=None"]),
            (x, {"recv_x_out": torch.zeros(ROWS, HIDDEN)}, ["recv_x_out=", "torch.bfloat16"]),
            (x, {"recv_x_out": torch.zeros(ROWS, HIDDEN - 8).bfloat16()}, ["recv_x_out=", f"({ROWS}, {HIDDEN})"]),
            (x, {"recv_x_out": wide[:ROWS, :HIDDEN]}, ["recv_x_out=", "contiguous"]),
            (x, {"recv_x_out": flat[1:][: ROWS * HIDDEN].view(ROWS, HIDDEN)}, ["recv_x_out=", "16-byte border"]),
            (held[: len(x)], {"recv_x_out": held}, ["recv_x_out=a tensor that overlaps x", "memory of its own"]),
            (x, {"recv_topk_weights_out": None}, ["recv_topk_weights_out=None", "given with topk_weights"]),
            (x, {"topk_weights": None}, ["recv_topk_weights_out=", "None without topk_weights"]),
            (x, {"recv_topk_weights_out": weights[1:]}, ["recv_topk_weights_out=", f"of {ROWS} elements"]),
            (x, {"recv_topk_weights_out": weights.double()}, ["recv_topk_weights_out=", "torch.float32"]),
            (x, {"recv_sf_out": torch.zeros(ROWS, 2)}, ["recv_sf_out=", "None without the scales of x"]),
            (x, {"expanded_row_offset": 4}, ["expanded_row_offset=4", "recv_x_out.narrow"]),
            ((fp8, scales), {"recv_x_out": good["recv_x_out"].to(fp8.dtype)}, ["recv_sf_out=None", "given with"]),
            (
                (fp8, scales),
                {"recv_x_out": good["recv_x_out"].to(fp8.dtype), "recv_sf_out": torch.zeros(ROWS, 1).expand(ROWS, 2)},
                ["recv_sf_out=", f"of shape ({ROWS}, 2)"],
            ),
        ]  # fmt: skip
        for rows, arguments, words in bad:
            call = {**options, **good, **arguments}
            assert_refused(lambda r=rows, a=call: buffer.dispatch_expanded_into(r, **a), words)
        _, _, _, handle, _ = buffer.dispatch_expanded_into(x, **options, **good)  # none of them was sent
        for arguments, words in (
            ({"recv_x_out": torch.zeros(ROWS + 1, HIDDEN).bfloat16()}, ["recv_x_out=", f"of {ROWS} rows"]),
            ({"recv_x_out": held, "handle": None}, ["topk_idx=None"]),
        ):
            call = {"handle": handle, **arguments}
            assert_refused(lambda a=call: buffer.dispatch_cached_expanded_into(x, **a), words)
        compact = buffer.dispatch(x, **options)[3]
        with pytest.raises(InvalidArgument, match="do_expand"):
            buffer.dispatch_cached_expanded_into(x, handle=compact, recv_x_out=held)
        assert LOCAL * TOPK  # every rank got here

    on_ranks(2, body)
