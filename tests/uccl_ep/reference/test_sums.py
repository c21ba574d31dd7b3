"""The oracle of a combine that is reduced in the node: by hand where its rounding shows, and against the direct one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from uccl_ep.reference import (
    CaseShape,
    low_latency_combine,
    low_latency_combine_by_node,
    low_latency_dispatch,
    random_case,
)


def test_reference_sums_by_hand() -> None:
    # Ranks 0 and 1 are one node, 2 and 3 another; a token of rank 0 visits experts 2, 0, 3 and 1, one a rank.
    ids, weights = torch.tensor([[2, 0, 3, 1]]), torch.tensor([[1.0, 1.0, 1.0, 1.0]])
    none = torch.empty(0, 4, dtype=torch.int64)
    all_ids, all_weights = [ids, none, none, none], [weights] + [torch.empty(0, 4)] * 3
    x = [torch.ones(1, 8).bfloat16()] + [torch.empty(0, 8).bfloat16()] * 3
    received = low_latency_dispatch(x, all_ids, 1, 4)
    values = [3.0, 0.5, 1.0, 1 / 256]  # of the experts: 1 + 1/256 is 1 in bf16
    rows = [torch.full((1, 4, 8), value).bfloat16() for value in values]
    direct = low_latency_combine(rows, all_ids, all_weights, received)[0]
    by_node = low_latency_combine_by_node(rows, all_ids, all_weights, received, 2)[0]
    assert by_node[0, 0] == 4.5 and direct[0, 0] == 4.5  # 4.5 + 1/256 rounds to 4.5 as well
    values = [1 / 128, 0.0, 1.0, 1 / 256]
    rows = [torch.full((1, 4, 8), value).bfloat16() for value in values]
    direct = low_latency_combine(rows, all_ids, all_weights, received)[0]
    by_node = low_latency_combine_by_node(rows, all_ids, all_weights, received, 2)[0]
    assert direct[0, 0] == torch.tensor(1 + 3 / 256).bfloat16() == 1 + 4 / 256
    assert by_node[0, 0] == 1 + 2 / 256  # the other node's 1 + 1/256 was rounded to 1
    # As FP8 a row of one value is that value to a rounding of its scale; rows that are summed are not cast before.
    values = [0.0, 0.0, 1.0, 1 / 4]
    rows = [torch.full((1, 4, 128), value).bfloat16() for value in values]
    rows[2][0, 0, 0], rows[3][0, 0, 0] = 448.0, -448.0  # alone each would have a scale of 1, and 1/4 and 1 be exact
    received = low_latency_dispatch(
        [torch.ones(1, 128).bfloat16()] + [torch.empty(0, 128).bfloat16()] * 3, all_ids, 1, 4
    )
    by_node = low_latency_combine_by_node(rows, all_ids, all_weights, received, 2, use_fp8=True)[0]
    assert by_node[0, 0] == 0 and torch.equal(by_node[0, 1:], torch.full((127,), 1.25).bfloat16())


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 5), st.integers(1, 3), st.integers(1, 4))
def test_reference_sums_in_one_node_are_the_direct_ones_and_else_near(
    seed: int, ranks: int, local: int, topk: int
) -> None:
    c = random_case(seed, CaseShape(ranks, ranks * local, topk, 16, 6))
    received = low_latency_dispatch(c.x, c.topk_idx, 6, ranks * local)
    rows = [torch.randn(local, ranks * 6, 16).bfloat16() for _ in range(ranks)]
    given_rows = (rows, c.topk_idx, c.topk_weights, received)
    direct = low_latency_combine(*given_rows)
    one = low_latency_combine_by_node(*given_rows, None)
    apart = low_latency_combine_by_node(*given_rows, 1)
    for a, b, d in zip(one, apart, direct, strict=True):
        assert torch.equal(a, d)
        scale = max(float(d.float().abs().max()), 1.0) if d.numel() else 1.0
        assert torch.allclose(b.float(), d.float(), atol=scale * 2.0**-4)


@pytest.mark.parametrize("per_node", [2, (2, 1)])
def test_reference_sums_of_no_token_are_empty(per_node: int | tuple[int, ...]) -> None:
    c = random_case(3, CaseShape(3, 6, 2, 8, 4), "uniform")
    empty = [torch.empty(0, 2, dtype=torch.int64)] * 3
    received = low_latency_dispatch([x[:0] for x in c.x], empty, 4, 6)
    rows = [torch.zeros(2, 12, 8).bfloat16()] * 3
    sums = low_latency_combine_by_node(rows, empty, [torch.empty(0, 2)] * 3, received, per_node)
    assert [tuple(s.shape) for s in sums] == [(0, 8)] * 3
