"""HybridEPBuffer: permuted dispatch and combine by value, forward and backward, padding, overflow, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.uccl_ep.elastic.worlds import HIDDEN, LOCAL, MAX_TOKENS, TOPK, a_case, expected
from tests.uccl_ep.ranks import assert_refused, same
from uccl_ep import InvalidArgument, NotSupported, ThreadGroup, reference, run_ranks
from uccl_ep.elastic.hybrid import HybridEPBuffer, indices_to_map, map_to_indices

Tensor = torch.Tensor


def on_ranks(ranks: int, body: Any) -> None:
    def run(group: ThreadGroup) -> None:
        buffer = HybridEPBuffer(group, HIDDEN, MAX_TOKENS, LOCAL)
        body(group.rank(), buffer)
        group.barrier()

    run_ranks(ranks, run)


def sorted_choices(want: Any, multiple: int) -> list[tuple[int, int, int] | None]:
    """(token here, its k, expert) of each row: experts ascending, tokens in order, None in padding."""
    ids, rows = want.tokens.recv_topk_idx, []
    for expert in range(LOCAL):
        rows += [(int(n), int(k), expert) for n, k in (ids == expert).nonzero()]
        rows += [None] * (-len(rows) % multiple)
    return rows  # type: ignore[return-value]


@pytest.mark.parametrize("ranks, per_node", [(2, 0), (4, 2)])
@pytest.mark.parametrize("multiple", [None, 4])
def test_hybrid_forward_and_backward(variables: Any, ranks: int, per_node: int, multiple: int | None) -> None:
    variables(RANKS_PER_NODE=per_node)
    cases = [a_case(11 + turn, ranks, kind) for turn, kind in enumerate(("some_unused", "uniform", "no_tokens"))]

    def body(rank: int, buffer: HybridEPBuffer) -> None:
        for turn, c in enumerate(cases):
            wants, experts = expected(c), c.shape.num_experts
            routing_map, probs = indices_to_map(c.topk_idx[rank], c.topk_weights[rank], c.x[rank].shape[0], experts)
            given: dict[str, Any] = {"routing_map": routing_map, "probs": probs}
            if turn == 1:
                given = {"topk_idx": c.topk_idx[rank], "topk_weights": c.topk_weights[rank]}
            rows, row_probs, scales, counts, handle = buffer.dispatch_with_permute(
                hidden=c.x[rank], **given, num_of_experts_per_rank=LOCAL, pad_multiple=multiple
            )
            choices = sorted_choices(wants[rank], multiple or 1)
            assert scales is None and rows.shape[0] == len(choices) == int(counts.sum()) and row_probs is not None
            assert counts.dtype == torch.int64 and counts.tolist() == wants[rank].aligned(multiple or 1)
            for at, choice in enumerate(choices):
                token, k, _ = choice or (0, 0, 0)
                filled = choice is not None
                assert same(rows[at], wants[rank].tokens.recv_x[token] if filled else torch.zeros_like(rows[at]))
                assert row_probs[at] == (wants[rank].weights[token, k] if filled else 0)

            # backward of dispatch: the gradients of rows and of their probs come back to tokens
            sums = [w.tokens.recv_x.float() * (w.tokens.recv_topk_idx >= 0).sum(1, keepdim=True) for w in wants]  # type: ignore[operator]
            combined, combined_probs = buffer.combine_with_unpermute(hidden=rows, probs=row_probs, handle=handle)
            one_by_one = [_summed(w) for w in wants]
            nodes = per_node or None
            wanted, _ = reference.throughput_combine(one_by_one, [w.tokens for w in wants], None, None, nodes)
            assert same(combined, wanted[rank]) and len(sums) == ranks
            assert probs is not None and combined_probs is not None and same(combined_probs, probs)

            # backward of combine: a cached dispatch
            again = buffer.dispatch_with_permute(hidden=-c.x[rank], handle=handle, pad_multiple=multiple)
            assert same(again[0], torch.where(rows == 0, rows, -rows)) or same(again[0], -rows)
            assert again[1] is None and again[3] is counts and again[4] is handle
            with_probs = buffer.dispatch_with_permute(hidden=c.x[rank], probs=probs, handle=handle)
            assert with_probs[1] is not None and same(with_probs[1], row_probs)

    on_ranks(ranks, body)


def _summed(want: Any) -> Tensor:
    """bf16 [n, H]: each received token once for each of its experts here, in f32, rounded."""
    total = torch.zeros(want.tokens.num_rows, HIDDEN)
    for k in range(TOPK):
        total += torch.where(want.tokens.recv_topk_idx[:, k : k + 1] >= 0, want.tokens.recv_x.float(), 0.0)
    return total.bfloat16()


def test_hybrid_non_blocking_cuts_and_pads(variables: Any) -> None:
    variables(RANKS_PER_NODE=2)
    c = a_case(21, 4, "uniform")

    def body(rank: int, buffer: HybridEPBuffer) -> None:
        want, experts = expected(c)[rank], c.shape.num_experts
        routing_map, probs = indices_to_map(c.topk_idx[rank], c.topk_weights[rank], c.x[rank].shape[0], experts)
        choices = sorted_choices(want, 2)
        for size in (len(choices) // 2, len(choices), len(choices) + 7):
            rows, row_probs, _, counts, handle = buffer.dispatch_with_permute(
                hidden=c.x[rank], routing_map=routing_map, probs=probs, pad_multiple=2, num_permuted_tokens=size,
                non_blocking=True,
            )  # fmt: skip
            assert rows.shape[0] == size and row_probs is not None and row_probs.shape == (size,)
            assert counts.tolist() == want.aligned(2) and bool(handle.overflow) == (size < len(choices))
            for at, choice in enumerate((choices + [None] * 7)[:size]):
                wanted = want.tokens.recv_x[choice[0]] if choice else torch.zeros(HIDDEN).bfloat16()
                assert same(rows[at], wanted)
            combined, combined_probs = buffer.combine_with_unpermute(hidden=rows, probs=row_probs, handle=handle)
            assert combined.shape == c.x[rank].shape and combined_probs is not None
            assert size < len(choices) or same(combined_probs, probs)  # type: ignore[arg-type]

    on_ranks(4, body)


def test_hybrid_fp8_rows_and_their_scales(variables: Any) -> None:
    variables(RANKS_PER_NODE=2)
    c = a_case(31, 4)
    fp8 = [reference.cast_fp8(x) for x in c.x]

    def body(rank: int, buffer: HybridEPBuffer) -> None:
        want = expected(c, fp8)[rank]
        routing_map, probs = indices_to_map(c.topk_idx[rank], None, c.x[rank].shape[0], c.shape.num_experts)
        rows, row_probs, scales, _, _ = buffer.dispatch_with_permute(
            hidden=fp8[rank][0], scaling_factor=fp8[rank][1], routing_map=routing_map
        )
        assert probs is None and row_probs is None and scales is not None and want.tokens.recv_scales is not None
        for at, choice in enumerate(sorted_choices(want, 1)):
            assert choice is not None
            assert same(rows[at], want.tokens.recv_x[choice[0]]) and same(
                scales[at], want.tokens.recv_scales[choice[0]]
            )

    on_ranks(4, body)


def test_hybrid_maps_and_indices() -> None:
    ids = torch.tensor([[3, 0, -1], [-1, -1, -1], [1, 2, 3]])
    weights = torch.tensor([[0.5, 0.25, 9.0], [9.0, 9.0, 9.0], [0.1, 0.2, 0.3]])
    routing_map, probs = indices_to_map(ids, weights, 3, 4)
    assert routing_map.int().tolist() == [[1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 1, 1]] and probs is not None
    assert torch.equal(probs, torch.tensor([[0.25, 0, 0, 0.5], [0, 0, 0, 0], [0, 0.1, 0.2, 0.3]]))
    back, back_weights = map_to_indices(routing_map, probs)
    assert back.tolist() == [[0, 3, -1, -1], [-1, -1, -1, -1], [1, 2, 3, -1]]
    assert back_weights is not None and back_weights[0].tolist() == [0.25, 0.5, 0.0, 0.0]
    many = torch.zeros(2, 100, dtype=torch.bool)
    many[1, 99] = True
    assert map_to_indices(many, None)[0][1].tolist() == [99] + [-1] * 31


def test_hybrid_refusals_and_attributes(variables: Any) -> None:
    variables()
    c = a_case(41, 2, "uniform")

    def body(rank: int, buffer: HybridEPBuffer) -> None:
        sizes = buffer.configurer.buffer_config
        assert (sizes.hidden_dim, sizes.max_num_of_tokens_per_rank, sizes.num_of_experts_per_rank) == (256, 20, LOCAL)
        config = buffer.update_template_config(hidden_dim=128, num_local_experts=LOCAL, num_of_stages=3, use_fp8=True)
        assert vars(config) == vars(sizes) and config is not sizes and buffer.empty_jit_cache() is None
        for wrong, told in (
            ({"hidden_dim": 512}, ["hidden_dim=512", "1 to 256"]),
            ({"num_of_tokens_per_rank": 21}, ["num_of_tokens_per_rank=21", "Make the buffer larger"]),
            ({"num_local_experts": 7}, ["num_local_experts=7", f"{LOCAL}, as the buffer was made for"]),
        ):
            assert_refused(lambda w=wrong: buffer.update_template_config(**w), told)
        x = torch.ones(4, HIDDEN).bfloat16()
        routing_map = torch.ones(4, 6, dtype=torch.bool)
        bad: list[tuple[dict[str, Any], str]] = [
            ({}, "routing_map=None"),
            ({"routing_map": routing_map, "probs": 3}, "probs=3"),
            ({"handle": 3}, "handle=3"),
            ({"routing_map": routing_map[:3]}, "4 rows"),
            ({"routing_map": routing_map[:, :5].contiguous()}, "6 columns"),
            ({"routing_map": routing_map, "probs": torch.ones(4, 5)}, "probs"),
            ({"routing_map": routing_map, "num_of_experts": 5}, "num_of_experts=5"),
            ({"routing_map": routing_map, "num_of_experts_per_rank": 4}, "num_of_experts_per_rank=4"),
            ({"routing_map": routing_map, "non_blocking": True}, "num_permuted_tokens"),
        ]
        for arguments, words in bad:
            assert_refused(lambda a=arguments: buffer.dispatch_with_permute(hidden=x, **a), [words])
        with pytest.raises(InvalidArgument, match="num_permuted_tokens must be .* or more here; got 1."):
            buffer.dispatch_with_permute(hidden=x, routing_map=routing_map, num_permuted_tokens=1)
        rows, _, _, _, handle = buffer.dispatch_with_permute(hidden=x, routing_map=routing_map)
        assert_refused(lambda: buffer.combine_with_unpermute(hidden=rows), ["handle"])
        assert_refused(lambda: buffer.combine_with_unpermute(hidden=rows[1:], handle=handle), ["hidden"])
        for name in ("dispatch", "combine"):
            with pytest.raises(NotSupported, match=f"HybridEPBuffer.{name}"):
                getattr(buffer, name)(x)
        more = torch.zeros(3 * MAX_TOKENS, HIDDEN).bfloat16()  # blocking calls take any number of tokens
        wide = torch.zeros(3 * MAX_TOKENS, 6, dtype=torch.bool)
        assert buffer.dispatch_with_permute(hidden=more, routing_map=wide)[0].shape == (0, HIDDEN)
        assert c.shape.num_experts == buffer.num_experts
        alone = ThreadGroup.create(1)[0]
        assert_refused(lambda: HybridEPBuffer(alone, 255, MAX_TOKENS, LOCAL), ["hidden_dim=255", "a multiple of 8"])

    on_ranks(2, body)


IDS, FEW = torch.zeros(4, 2).long(), torch.ones(3, HIDDEN).bfloat16()
MANY = torch.zeros(MAX_TOKENS + 1, HIDDEN).bfloat16()


@pytest.mark.parametrize(
    "changes, words",
    [
        (
            {"hidden": MANY.float()},
            "hidden must be of bf16 rows, or of one-byte rows with scales as scaling_factor; got",
        ),
        ({"hidden": MANY.T}, "hidden must be a contiguous 2-D tensor"),
        ({"hidden": None}, "hidden must be a contiguous 2-D tensor"),
        ({"hidden": FEW}, "topk_idx must be of 3 rows, as hidden has; got a tensor of shape (4, 2)"),
        ({"hidden": MANY, "non_blocking": True, "num_permuted_tokens": 9}, "up to max_num_of_tokens_per_rank=20 rows"),
        ({"scaling_factor": torch.ones(4, 2)}, "hidden must be of a one-byte dtype"),
        ({"hidden": FEW.to(torch.float8_e4m3fn), "scaling_factor": 3}, "scaling_factor=3"),
        ({"use_fp8": True}, "use_fp8 must be False, or None, without scaling_factor; got True."),
        ({"topk_idx": IDS[:3]}, "topk_idx must be of 4 rows, as hidden has"),
        ({"topk_idx": IDS.float()}, "topk_idx must be a contiguous 2-D tensor of torch.int64"),
        ({"topk_idx": 3}, "topk_idx=3"),
        ({"topk_idx": IDS + LOCAL}, "topk_idx must be -1 (not routed) or 0 to 2"),
        ({"topk_weights": torch.ones(4, 3)}, "topk_weights must be of shape (4, 2), as topk_idx"),
        ({"topk_weights": 3}, "topk_weights=3"),
        ({"num_permuted_tokens": -1}, "num_permuted_tokens=-1"),
    ],
)
def test_hybrid_refusals_name_the_users_call_and_arguments(changes: dict[str, Any], words: str, variables: Any) -> None:
    """What is found further below, too: there x is one of two, and rows are bytes."""
    variables()
    buffer = HybridEPBuffer(ThreadGroup.create(1)[0], HIDDEN, MAX_TOKENS, LOCAL)
    x = torch.ones(4, HIDDEN).bfloat16()
    given = {"hidden": x, "topk_idx": IDS, "topk_weights": torch.ones(4, 2), **changes}
    assert_refused(lambda: buffer.dispatch_with_permute(**given), [words, "dispatch_with_permute: "])


def test_hybrid_refusals_of_a_handles_calls(variables: Any) -> None:
    variables()
    buffer = HybridEPBuffer(ThreadGroup.create(1)[0], HIDDEN, MAX_TOKENS, LOCAL)
    x = torch.ones(4, HIDDEN).bfloat16()
    rows, _, _, _, handle = buffer.dispatch_with_permute(hidden=x, topk_idx=IDS)

    def again(**changes: Any) -> Any:
        return lambda: buffer.dispatch_with_permute(**{"hidden": x, "handle": handle, **changes})

    def back(out: Any) -> Any:
        return lambda: buffer.combine_with_unpermute(hidden=rows, handle=handle, out=out)

    assert_refused(
        again(hidden=FEW), ["hidden must be of 4 rows, as the handle's dispatch had; got a tensor of shape (3"]
    )
    assert_refused(again(probs=3), ["probs=3"])
    assert_refused(again(probs=torch.ones(4, 5)), ["probs=", f"of shape (4, {LOCAL})"])
    assert_refused(back(3), ["out=3", "combine_with_unpermute: "])
    assert_refused(back(x[:3]), ["out=", f"of shape (4, {HIDDEN})"])
    assert_refused(back(x.float()), ["out=", "torch.bfloat16"])
    assert_refused(back(rows[:4]), ["out=", "a tensor that overlaps hidden"])
