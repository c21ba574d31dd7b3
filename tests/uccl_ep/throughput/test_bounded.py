"""A bounded receive that drops: kept rows, their sums and what is told are those of a plain count over all tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.uccl_ep.ranks import assert_refused, case, layout_arguments, same, throughput
from uccl_ep import Buffer, SettingsMismatch, ThreadGroup, reference, run_ranks
from uccl_ep.reference import RandomCase, ThroughputInput

Tensor = torch.Tensor
WORLDS = [(1, 0), (3, 0), (4, 2), (5, 2)]
LOCAL, TOPK, HIDDEN, TOKENS = 3, 3, 128, 24
TRAFFIC = ["uniform", "hot_expert", "no_tokens", "some_unused", "duplicates", "all_unused"]


def a_case(seed: int, ranks: int) -> RandomCase:
    shape = {"num_ranks": ranks, "num_experts": LOCAL * ranks, "num_topk": TOPK, "hidden": HIDDEN}
    return case(seed, TRAFFIC[seed % len(TRAFFIC)], **shape, max_tokens=TOKENS)


def kept_ids(
    c: RandomCase, capacities: list[int], parted: tuple[int, int] | None = None
) -> tuple[list[Tensor], list[int]]:
    """(ids of each rank with -1 for what does not fit, rows that each rank was to receive), counted one by one.

    `parted`: two ranks that have masked each other.
    """
    taken, kept = [0] * c.shape.num_ranks, [ids.clone() for ids in c.topk_idx]
    for source, ids in enumerate(kept):
        for token in range(len(ids)):
            for rank in sorted({int(e) // LOCAL for e in ids[token] if e >= 0}):
                apart = parted is not None and {source, rank} == set(parted)
                taken[rank] += not apart
                if apart or taken[rank] > capacities[rank]:
                    ids[token][ids[token] // LOCAL == rank] = -1  # of -1 it is rank -1
    return kept, taken


def expected(c: RandomCase, kept: list[Tensor], fp8: bool) -> list[reference.ThroughputReceived]:
    inputs = []
    for rank, ids in enumerate(kept):
        x, scales = reference.cast_fp8(c.x[rank]) if fp8 else (c.x[rank], None)
        sent = reference.dispatch_layout(ids, c.shape.num_experts, c.shape.num_ranks).is_token_in_rank
        inputs.append(ThroughputInput(x, sent, ids, c.topk_weights[rank], scales))
    return reference.throughput_dispatch(inputs, c.shape.num_experts)


def capacities_of(c: RandomCase, turn: int) -> list[int]:
    """None of them fits, all of them fit, and between; each rank its own."""
    totals = kept_ids(c, [0] * c.shape.num_ranks)[1]
    return [
        max(1, (total * turn // 2, total, total - 1, 1, TOKENS * 9)[(turn + r) % 5]) for r, total in enumerate(totals)
    ]


@pytest.mark.mostly_slow(quick=4)
@pytest.mark.parametrize("ranks, per_node", WORLDS)
@pytest.mark.parametrize("fp8, shrink", [(False, False), (True, False), (False, True)])
def test_bounded_rows_that_fit_come_and_all_ranks_are_told(
    variables: Any, ranks: int, per_node: int, fp8: bool, shrink: bool
) -> None:
    variables(RANKS_PER_NODE=per_node)
    turns = [(turn, a_case(turn, ranks)) for turn in range(2 * len(TRAFFIC))]
    dropped = [0]

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        with throughput(group, enable_shrink=shrink) as buffer:
            for turn, c in turns:
                capacities = capacities_of(c, turn % 5)
                kept, totals = kept_ids(c, capacities)
                want = expected(c, kept, fp8)
                x: Any = reference.cast_fp8(c.x[rank]) if fp8 else c.x[rank]
                layout = layout_arguments(buffer, c.topk_idx[rank], c.shape.num_experts)
                topk = {"topk_idx": c.topk_idx[rank], "topk_weights": c.topk_weights[rank]}
                event = Buffer.capture() if turn % 2 else None
                received, idx, weights, counts, handle, done = buffer.dispatch(
                    x, **topk, **layout, num_worst_tokens=capacities[rank], overflow_policy="drop",
                    previous_event=event, async_finish=turn % 2 == 1,
                )  # fmt: skip
                if turn % 2:
                    done.current_stream_wait()
                assert counts == [] and idx is not None and weights is not None and handle.recv_totals is not None
                assert handle.recv_totals.tolist() == totals
                overflow = any(total > most for total, most in zip(totals, capacities, strict=True))
                assert bool(handle.overflow) == overflow and same(handle.kept_topk_idx, kept[rank])
                n = want[rank].num_rows
                assert n == min(totals[rank], capacities[rank]) and len(idx) == capacities[rank]
                parts = received if fp8 else (received, None)
                assert same(parts[0][:n], want[rank].recv_x)
                if fp8:
                    assert same(parts[1][:n], want[rank].recv_scales)
                assert same(idx[:n], want[rank].recv_topk_idx) and same(weights[:n], want[rank].recv_topk_weights)
                assert bool((idx[n:] == -1).all())

                ys = [torch.randn(cap, HIDDEN, generator=torch.Generator().manual_seed(r)).bfloat16()
                      for r, cap in enumerate(capacities)]  # fmt: skip
                sums, sum_weights = reference.throughput_combine(
                    [y[: w.num_rows] for y, w in zip(ys, want, strict=True)], want,
                    [w.recv_topk_weights for w in want], ranks_per_node=per_node or None, apart=shrink,
                )  # fmt: skip
                got, got_weights, _ = buffer.combine(ys[rank], handle, weights)
                assert sum_weights is not None
                assert same(got, sums[rank]) and same(got_weights, sum_weights[rank])
                again = buffer.dispatch(x, handle=handle)[0]  # leaves out the same rows
                assert same((again[0] if fp8 else again)[:n], want[rank].recv_x)
                dropped[0] += overflow

    run_ranks(ranks, body)
    assert dropped[0] > 0


def test_bounded_ranks_that_count_differently(variables: Any) -> None:
    """Ranks 0 and 3 have masked each other, ranks 1 and 2 nobody: what these take of rank 3 is theirs to say."""
    variables(RANKS_PER_NODE=2, TIMEOUT_S=10)
    cases = [a_case(seed, 4) for seed in (0, 1, 6)]
    rooms = [1, 9, 14, 30]

    def body(group: ThreadGroup) -> int:
        rank, dropped = group.rank(), 0
        with throughput(group, enable_shrink=True) as buffer:
            if rank in (0, 3):
                buffer.low_latency_update_mask_buffer(3 - rank, True)
            for c in cases:
                for room in rooms:
                    kept, totals = kept_ids(c, [room + r for r in range(4)], parted=(0, 3))
                    want = expected(c, kept, False)[rank]
                    layout = layout_arguments(buffer, c.topk_idx[rank], c.shape.num_experts)
                    topk = {"topk_idx": c.topk_idx[rank], "topk_weights": c.topk_weights[rank]}
                    received, idx, _, _, handle, _ = buffer.dispatch(
                        c.x[rank], **topk, **layout, num_worst_tokens=room + rank, overflow_policy="drop"
                    )
                    assert same(handle.kept_topk_idx, kept[rank]) and idx is not None
                    assert same(received[: want.num_rows], want.recv_x) and same(
                        idx[: want.num_rows], want.recv_topk_idx
                    )
                    known = [r for r in range(4) if {r, rank} != {0, 3}]
                    assert handle.recv_totals is not None
                    assert handle.recv_totals.tolist() == [totals[r] if r in known else 0 for r in range(4)]
                    assert bool(handle.overflow) == any(totals[r] > room + r for r in known)
                    dropped += bool(handle.overflow)
        return dropped

    assert min(run_ranks(4, body)) > 3


def test_bounded_report_and_replay(variables: Any) -> None:
    """What Megatron does: every rank sees the same report, makes the same room, and dispatches again."""
    variables(RANKS_PER_NODE=2)
    c = a_case(1, 4)

    def body(group: ThreadGroup) -> list[int]:
        rank, rooms = group.rank(), [5]
        with throughput(group) as buffer:
            while True:
                layout = layout_arguments(buffer, c.topk_idx[rank], c.shape.num_experts)
                topk = {"topk_idx": c.topk_idx[rank], "topk_weights": c.topk_weights[rank]}
                x, _, _, _, handle, _ = buffer.dispatch(
                    c.x[rank], **topk, **layout, num_worst_tokens=rooms[-1], overflow_policy="drop"
                )
                if not handle.overflow:
                    break
                assert handle.recv_totals is not None
                rooms.append(int(handle.recv_totals.max()))
            want = expected(c, c.topk_idx, False)[rank]
            assert same(x[: want.num_rows], want.recv_x)
        return rooms

    rooms = run_ranks(4, body)
    assert rooms == [[5, max(kept_ids(c, [0] * 4)[1])]] * 4


def test_bounded_more_ranks_than_a_row_has_choices(variables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    variables()
    monkeypatch.setattr("uccl_ep._native.MAX_TOPK", TOPK)
    c = a_case(0, 5)

    def body(group: ThreadGroup) -> None:
        rank = group.rank()
        with throughput(group) as buffer:
            layout = layout_arguments(buffer, c.topk_idx[rank], c.shape.num_experts)
            topk = {"topk_idx": c.topk_idx[rank], "topk_weights": c.topk_weights[rank]}
            handle = buffer.dispatch(c.x[rank], **topk, **layout, num_worst_tokens=7, overflow_policy="drop")[4]
            kept, totals = kept_ids(c, [7] * 5)
            assert handle.recv_totals is not None and handle.recv_totals.tolist() == totals
            assert same(handle.kept_topk_idx, kept[rank])

    run_ranks(5, body)


def test_bounded_trap_names_the_rank_and_the_count(variables: Any) -> None:
    variables(TIMEOUT_S=5)
    c = a_case(0, 1)
    total = kept_ids(c, [0])[1][0]
    with pytest.raises(SettingsMismatch, match=rf"rank 0.*num_worst_tokens.*\b{total - 1}\b.*\b{total}\b"):
        with throughput(ThreadGroup.create(1)[0]) as buffer:
            layout = layout_arguments(buffer, c.topk_idx[0], c.shape.num_experts)
            topk = {"topk_idx": c.topk_idx[0], "topk_weights": c.topk_weights[0]}
            buffer.dispatch(c.x[0], **topk, **layout, num_worst_tokens=total - 1, overflow_policy="trap")


def test_bounded_what_is_refused(variables: Any) -> None:
    variables()
    c = a_case(0, 1)
    group = ThreadGroup.create(1)[0]
    topk: Any = {"topk_idx": c.topk_idx[0], "topk_weights": c.topk_weights[0]}
    with throughput(group) as buffer:
        layout: Any = {**layout_arguments(buffer, c.topk_idx[0], c.shape.num_experts), **topk}
        handle = buffer.dispatch(c.x[0], **layout)[4]
        drop: Any = {"overflow_policy": "drop"}
        for bad in (
            {**layout, "overflow_policy": "clip"},
            {**layout, **drop},
            {**drop, "handle": handle, "num_worst_tokens": 4},
        ):
            assert_refused(lambda a=bad: buffer.dispatch(c.x[0], **a), ["overflow_policy"])
        few = {**layout, **drop, "num_worst_tokens": 4}
        assert_refused(lambda: buffer.dispatch(c.x[0][:-1].contiguous(), **few), ["is_token_in_rank"])
        assert_refused(lambda: buffer.dispatch(c.x[0], **{**few, "num_worst_tokens": -1}), ["num_worst_tokens"])
        assert_refused(lambda: buffer.dispatch(c.x[0], **{**few, "topk_weights": None}), ["topk_weights"])
        assert len(buffer.dispatch(c.x[0], **few)[0]) == 4  # as good as before
