"""The oracle's layout and throughput mode: small cases worked out by hand, and laws of every right result."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from uccl_ep.errors import InvalidArgument
from uccl_ep.reference import (
    CaseShape,
    RandomCase,
    ThroughputInput,
    cast_fp8,
    dispatch_layout,
    node_ranges,
    random_case,
    throughput_combine,
    throughput_dispatch,
)

BF16 = torch.bfloat16
shapes = st.builds(
    lambda ranks, local, topk, hidden, tokens: CaseShape(ranks, ranks * local, topk, hidden, tokens),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 5),
    st.sampled_from([8, 128]),
    st.integers(0, 12),
)
cases = st.builds(random_case, st.integers(0, 2**31), shapes)


def inputs_of(case: RandomCase) -> list[ThroughputInput]:
    ranks, experts = case.shape.num_ranks, case.shape.num_experts
    tokens = zip(case.x, case.topk_idx, case.topk_weights, strict=True)
    return [ThroughputInput(x, dispatch_layout(i, experts, ranks).is_token_in_rank, i, w) for x, i, w in tokens]


def one_token_everywhere(num_ranks: int) -> list[ThroughputInput]:
    """Rank 0 sends one token to all ranks; nobody else has any."""
    inputs = [ThroughputInput(torch.zeros(0, 8, dtype=BF16), torch.zeros(0, num_ranks, dtype=torch.bool))] * num_ranks
    inputs[0] = ThroughputInput(torch.zeros(1, 8, dtype=BF16), torch.ones(1, num_ranks, dtype=torch.bool))
    return inputs


def summed(values: list[float], **options: object) -> float:
    """What combine makes of one token for which rank r gives values[r]."""
    received = throughput_dispatch(one_token_everywhere(len(values)), len(values))
    x = [torch.full((1, 8), value, dtype=BF16) for value in values]
    combined, _ = throughput_combine(x, received, **options)  # type: ignore[arg-type]
    assert combined[0].dtype == BF16 and all(c.shape == (0, 8) for c in combined[1:])
    return float(combined[0][0, 0])


def test_layout_by_hand() -> None:
    # 4 ranks of 2 experts; nodes of 2 ranks
    ids = torch.tensor([[0, 1, 7], [3, -1, 8], [-1, -1, -1], [5, 5, 4], [-7, 99, 6]])
    layout = dispatch_layout(ids, 8, 4, 2)
    per_rank, per_node, per_expert, in_rank, event = layout
    assert event is None
    assert in_rank.int().tolist() == [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert per_rank.tolist() == [1, 1, 1, 2]
    assert per_node is not None and per_node.tolist() == [2, 3]
    assert per_expert.tolist() == [1, 1, 0, 1, 1, 2, 1, 1]  # 5 was chosen twice
    assert {t.dtype for t in (per_rank, per_node, per_expert)} == {torch.int32} and in_rank.dtype == torch.bool
    assert dispatch_layout(ids, 8, 4).num_tokens_per_rdma_rank is None
    uneven = dispatch_layout(ids, 8, 4, [1, 3]).num_tokens_per_rdma_rank
    assert uneven is not None and uneven.tolist() == [1, 4]
    empty = dispatch_layout(torch.empty(0, 3, dtype=torch.int32), 8, 4, 3)
    assert empty.num_tokens_per_rank.tolist() == [0] * 4 and empty.is_token_in_rank.shape == (0, 4)


def test_node_ranges() -> None:
    assert node_ranges(5, 2) == [range(2), range(2, 4), range(4, 5)]
    assert node_ranges(5, [1, 4]) == [range(1), range(1, 5)]
    assert node_ranges(3, None) == node_ranges(3, 8) == [range(3)]
    for wrong in (0, [2, 2], [5, 0]):
        with pytest.raises(InvalidArgument, match="ranks_per_node"):
            node_ranges(5, wrong)
    with pytest.raises(InvalidArgument, match="num_experts must be .*4 ranks.*; got 6."):
        dispatch_layout(torch.zeros(1, 1), 6, 4)


def test_throughput_dispatch_by_hand() -> None:
    # 2 ranks of 2 experts
    ids = [torch.tensor([[0, 3], [-1, 2], [-1, -1]]), torch.tensor([[1, 1]])]
    weights = [torch.tensor([[0.5, 0.25], [9.0, 0.75], [9.0, 9.0]]), torch.tensor([[0.1, 0.2]])]
    x = [torch.tensor([[10.0], [11.0], [12.0]]), torch.tensor([[20.0]])]
    inputs = [
        ThroughputInput(x[r], dispatch_layout(ids[r], 4, 2).is_token_in_rank, ids[r], weights[r]) for r in range(2)
    ]
    first, second = throughput_dispatch(inputs, 4, expert_alignment=4)
    assert first.recv_x.tolist() == [[10.0], [20.0]] and second.recv_x.tolist() == [[10.0], [11.0]]
    assert first.recv_topk_idx is not None and first.recv_topk_idx.tolist() == [[0, -1], [1, 1]]
    assert second.recv_topk_idx is not None and second.recv_topk_idx.tolist() == [[-1, 1], [-1, 0]]
    assert first.recv_topk_weights is not None and second.recv_topk_weights is not None
    assert torch.equal(first.recv_topk_weights, torch.tensor([[0.5, 0.0], [0.1, 0.2]]))
    assert torch.equal(second.recv_topk_weights, torch.tensor([[0.0, 0.25], [0.0, 0.75]]))
    assert first.num_recv_tokens_per_expert_list == [4, 4] and second.num_recv_tokens_per_expert_list == [4, 4]
    assert throughput_dispatch(inputs, 4)[0].num_recv_tokens_per_expert_list == [1, 2]
    assert first.src_rank.tolist() == [0, 1] and first.src_token.tolist() == [0, 0]
    assert second.src_rank.tolist() == [0, 0] and second.src_token.tolist() == [0, 1]
    assert (first.num_rows, first.num_own_tokens, second.num_own_tokens) == (2, 3, 1)


@settings(max_examples=40, deadline=None)
@given(cases)
def test_throughput_rows_are_ordered_and_complete(case: RandomCase) -> None:
    inputs = inputs_of(case)
    local = case.shape.num_experts // case.shape.num_ranks
    results = throughput_dispatch(inputs, case.shape.num_experts)
    for rank, got in enumerate(results):
        order = list(zip(got.src_rank.tolist(), got.src_token.tolist(), strict=True))
        assert order == sorted(set(order)) and len(order) == got.num_rows
        assert all(torch.equal(got.recv_x[i], case.x[s][t]) for i, (s, t) in enumerate(order))
        ids, weights = got.recv_topk_idx, got.recv_topk_weights
        assert ids is not None and weights is not None and ids.dtype == torch.int64
        for i, (s, t) in enumerate(order):
            wanted = case.topk_idx[s][t]
            there = (wanted >= rank * local) & (wanted < (rank + 1) * local)
            assert there.any()  # nothing is sent for nothing
            assert torch.equal(ids[i] + rank * local, torch.where(there, wanted, rank * local - 1))
            assert torch.equal(weights[i], torch.where(there, case.topk_weights[s][t], 0.0))
        everywhere = torch.cat(case.topk_idx).flatten()
        chosen = [int((everywhere == rank * local + e).sum()) for e in range(local)]
        assert got.num_recv_tokens_per_expert_list == chosen
    layouts = [dispatch_layout(i, case.shape.num_experts, case.shape.num_ranks) for i in case.topk_idx]
    assert [r.num_rows for r in results] == sum(lay.num_tokens_per_rank for lay in layouts).tolist()  # type: ignore[union-attr]


@settings(max_examples=20, deadline=None)
@given(cases, st.integers(0, 3))
def test_worst_tokens_only_adds_marked_rows(case: RandomCase, spare: int) -> None:
    inputs = inputs_of(case)
    exact = throughput_dispatch(inputs, case.shape.num_experts)
    worst = max(1, max(r.num_rows for r in exact) + spare)
    x = []
    for got, plain in zip(throughput_dispatch(inputs, case.shape.num_experts, 8, worst), exact, strict=True):
        assert got.num_recv_tokens_per_expert_list == [] and got.num_rows == plain.num_rows
        for field in ("recv_x", "recv_topk_idx", "recv_topk_weights", "src_rank", "src_token"):
            padded = getattr(got, field)
            assert padded.shape[0] == worst and torch.equal(padded[: got.num_rows], getattr(plain, field))
        assert got.recv_topk_idx is not None and bool((got.recv_topk_idx[got.num_rows :] == -1).all())
        x.append(torch.cat([plain.recv_x, torch.full((worst - got.num_rows, case.shape.hidden), torch.nan).to(BF16)]))
    padded_results = throughput_dispatch(inputs, case.shape.num_experts, 8, worst)
    summed_up, _ = throughput_combine(x, padded_results)
    expected, _ = throughput_combine([r.recv_x for r in exact], exact)
    assert all(torch.equal(a, b) for a, b in zip(summed_up, expected, strict=True))  # padding never reaches a sum


def test_worst_tokens_refusals() -> None:
    inputs = one_token_everywhere(2)
    with pytest.raises(InvalidArgument, match="num_worst_tokens must be 0 without topk_idx; got 4."):
        throughput_dispatch(inputs, 2, num_worst_tokens=4)
    ids = torch.tensor([[0], [0]])
    full = ThroughputInput(torch.zeros(2, 8), torch.ones(2, 1, dtype=torch.bool), ids, torch.ones(2, 1))
    with pytest.raises(InvalidArgument, match="num_worst_tokens must be 2 or more; got 1. Rank 0"):
        throughput_dispatch([full], 1, num_worst_tokens=1)


@pytest.mark.parametrize("traffic", ["mixed", "hot_expert", "no_tokens"])
@pytest.mark.parametrize("packed", [False, True])
def test_quantised_rows_and_scales_move_verbatim(traffic: str, packed: bool) -> None:
    case = random_case(3, CaseShape(3, 6, 2, 512, 9), traffic)
    inputs, bytes_sent, scales_sent = [], [], []
    for plain in inputs_of(case):
        q, scales = cast_fp8(plain.x, packed, packed)
        inputs.append(dataclasses.replace(plain, x=q, scales=scales.T.contiguous().T))  # column-major
        bytes_sent.append(q.view(torch.uint8))
        scales_sent.append(scales)
    for got in throughput_dispatch(inputs, 6):
        assert got.recv_scales is not None and got.recv_scales.is_contiguous()
        assert got.recv_x.dtype == torch.float8_e4m3fn and got.recv_scales.dtype == scales_sent[0].dtype
        for i, (s, t) in enumerate(zip(got.src_rank.tolist(), got.src_token.tolist(), strict=True)):
            assert torch.equal(got.recv_x.view(torch.uint8)[i], bytes_sent[s][t])
            assert torch.equal(got.recv_scales[i], scales_sent[s][t])


def test_combine_adds_in_rank_order_and_rounds_once() -> None:
    assert summed([2.0**24, 1.0, -(2.0**24)]) == 0.0  # 2**24 + 1 is 2**24 in f32
    assert summed([2.0**24, -(2.0**24), 1.0]) == 1.0
    assert summed([256.0, 1.0, 1.0]) == 258.0  # 257 does not exist in bf16; one rounding does not need it


def test_combine_rounds_each_node_first() -> None:
    assert summed([256.0, 1.0, 1.0], ranks_per_node=2) == 256.0  # (256 + 1 -> 256) + 1 = 257 -> 256
    assert summed([256.0, 1.0, 1.0], ranks_per_node=[1, 2]) == 258.0
    assert summed([2.0**24, 1.0, -(2.0**24)], ranks_per_node=[1, 2]) == 0.0  # 1 - 2**24 needs 24 bits: bf16 has 8
    assert summed([2.0**24, -(2.0**24), 1.0], ranks_per_node=1) == 1.0
    assert summed([2.0**24, 1.0, -(2.0**24)], ranks_per_node=1) == 0.0  # nodes ascend
    assert summed([256.0, 1.0, 1.0], ranks_per_node=3) == summed([256.0, 1.0, 1.0], ranks_per_node=None)


def test_bias_comes_first() -> None:
    def bias(value: float) -> Tensor:
        return torch.full((1, 8), value, dtype=BF16)

    empty = torch.zeros(0, 8, dtype=BF16)
    rest: list[object] = [empty, (empty, empty)]
    big = 2.0**24
    assert summed([1.0, -big, 0.0], bias=[bias(big), *rest]) == 0.0  # last, the bias would leave 1
    assert summed([1.0, 0.0, 0.0], bias=[(bias(big), bias(-big)), *rest]) == 1.0
    assert summed([1.0, 0.0, 0.0], bias=[(None, bias(0.5)), *rest]) == 1.5
    assert summed([1.0, 1.0, 1.0], bias=[bias(256.0), *rest], ranks_per_node=2) == 260.0  # 259 -> 260: even
    assert summed([0.5, 0.25, 1.0], bias=[None, None, None]) == 1.75
    for one_node in (None, 3):  # 257 does not exist in bf16, and a single node does not round to it
        assert summed([256.0, 1.0, 0.0], bias=[bias(1.0), *rest], ranks_per_node=one_node) == 258.0


@pytest.mark.parametrize("ranks_per_node", [None, 1])
def test_a_token_without_destination_gives_its_bias(ranks_per_node: int | None) -> None:
    nowhere = ThroughputInput(torch.ones(1, 8, dtype=BF16), torch.zeros(1, 2, dtype=torch.bool))
    received = throughput_dispatch([nowhere, nowhere], 2)
    rows = [r.recv_x for r in received]
    assert [r.shape for r in rows] == [(0, 8), (0, 8)]
    half = torch.full((1, 8), 0.5, dtype=BF16)
    combined, weights = throughput_combine(rows, received, None, [(half, half), None], ranks_per_node)
    assert combined[0].tolist() == [[1.0] * 8] and combined[1].tolist() == [[0.0] * 8] and weights is None


@settings(max_examples=40, deadline=None)
@given(cases, st.integers(1, 4))
def test_round_trip_counts_destinations_and_returns_weights(case: RandomCase, ranks_per_node: int) -> None:
    shape = case.shape
    # Whole numbers below 16, so that up to 6 copies are exact in bf16 whatever the rounding.
    case = dataclasses.replace(case, x=[(x.float().abs() % 16).floor().bfloat16() for x in case.x])
    received = throughput_dispatch(inputs_of(case), shape.num_experts)
    weights = [r.recv_topk_weights for r in received]
    for nodes in (None, ranks_per_node):
        combined, back = throughput_combine([r.recv_x for r in received], received, weights, None, nodes)  # type: ignore[arg-type]
        assert back is not None
        for rank, x in enumerate(case.x):
            ids = case.topk_idx[rank]
            layout = dispatch_layout(ids, shape.num_experts, shape.num_ranks)
            copies = layout.is_token_in_rank.sum(1, keepdim=True)
            assert torch.equal(combined[rank].float(), x.float() * copies)
            used = (ids >= 0) & (ids < shape.num_experts)
            assert torch.equal(back[rank], torch.where(used, case.topk_weights[rank], 0.0))


def test_weights_are_not_rounded_between_nodes() -> None:
    received = throughput_dispatch(one_token_everywhere(3), 3)
    x = [torch.zeros(1, 8, dtype=BF16)] * 3
    given = [torch.tensor([[256.0, 2.0**24]]), torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, -(2.0**24)]])]
    for nodes, expected in ((None, [258.0, 0.0]), (2, [258.0, 0.0]), ([1, 2], [258.0, 1.0])):
        _, weights = throughput_combine(x, received, given, None, nodes)
        assert weights is not None and weights[0].dtype == torch.float32
        assert weights[0].tolist() == [expected]


def test_combine_refuses_other_rows_than_received() -> None:
    received = throughput_dispatch(one_token_everywhere(2), 2)
    good = torch.zeros(1, 8, dtype=BF16)
    with pytest.raises(InvalidArgument, match=r"x\[1\] must be of torch.bfloat16 and 1 rows; got .*\(2, 8\)"):
        throughput_combine([good, torch.zeros(2, 8, dtype=BF16)], received)
    with pytest.raises(InvalidArgument, match=r"x\[0\].*float32"):
        throughput_combine([good.float(), good], received)
