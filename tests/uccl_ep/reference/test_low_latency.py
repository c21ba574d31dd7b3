"""The oracle's low-latency mode: small cases worked out by hand, and laws of every right result."""

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
    Fp8Format,
    LowLatencyReceived,
    RandomCase,
    ThroughputInput,
    cast_fp8,
    dispatch_layout,
    hash_tensor,
    logfmt_decode,
    logfmt_encode,
    low_latency_combine,
    low_latency_dispatch,
    random_case,
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


def test_low_latency_dispatch_by_hand() -> None:
    # 2 ranks of 2 experts, M = 3. Expert 1 is named twice by rank 0's last token.
    ids = [torch.tensor([[1, 2], [0, -1], [1, 1]]), torch.tensor([[3, 1], [-1, 9]])]
    x = [torch.arange(3).view(3, 1).expand(3, 4).bfloat16() + 10, torch.arange(2).view(2, 1).expand(2, 4).bfloat16()]
    first, second = low_latency_dispatch(x, ids, 3, 4)
    assert first.recv_x.shape == (2, 6, 4) and first.recv_x.dtype == BF16 and first.scales is None
    assert first.recv_count.tolist() == [1, 3] and second.recv_count.tolist() == [1, 1]
    assert first.src_info.tolist() == [[1, -1, -1, -1, -1, -1], [0, 2, 0, -1, -1, -1]]
    assert first.recv_x[1, :3, 0].tolist() == [10.0, 12.0, 0.0] and first.recv_x[0, 0, 0] == 11
    assert first.layout_range.tolist() == [[1, 1 << 32], [2, (2 << 32) | 1]]
    assert second.layout_range.tolist() == [[1, 1 << 32], [0, 1]]
    assert (first.recv_count.dtype, first.src_info.dtype, first.layout_range.dtype) == (
        torch.int32, torch.int32, torch.int64,
    )  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(cases)
def test_low_latency_rows_are_what_the_handle_says(case: RandomCase) -> None:
    shape, most = case.shape, max(1, case.shape.max_tokens)
    local = shape.num_experts // shape.num_ranks
    for rank, got in enumerate(low_latency_dispatch(case.x, case.topk_idx, most, shape.num_experts)):
        for e in range(local):
            naming = [(ids == rank * local + e).any(1).nonzero().flatten() for ids in case.topk_idx]
            begin = 0
            for source, tokens in enumerate(naming):
                assert int(got.layout_range[e, source]) == begin << 32 | tokens.numel()
                end = begin + tokens.numel()
                assert got.src_info[e, begin:end].tolist() == tokens.tolist()
                assert torch.equal(got.recv_x[e, begin:end], case.x[source][tokens])
                begin = end
            assert int(got.recv_count[e]) == begin and bool((got.src_info[e, begin:] == -1).all())


@pytest.mark.parametrize("form", [Fp8Format(), Fp8Format(True), Fp8Format(True, True)])
def test_low_latency_fp8_is_the_cast_of_each_row(form: Fp8Format) -> None:
    case = random_case(5, CaseShape(2, 4, 3, 1024, 6), "uniform")
    casts = [cast_fp8(x, *form) for x in case.x]
    slots = 2 * 6
    for got in low_latency_dispatch(case.x, case.topk_idx, 6, 4, form):
        assert got.scales is not None and got.recv_x.dtype == torch.float8_e4m3fn
        width = 1024 // (512 if form.use_ue8m0 else 128)
        assert got.scales.shape == (2, slots, width) and got.scales.stride() == (slots * width, 1, slots)
        assert got.scales.dtype == (torch.int32 if form.use_ue8m0 else torch.float32)
        checked = 0
        for e in range(2):
            for source in range(2):
                begin, count = divmod(int(got.layout_range[e, source]), 1 << 32)
                tokens = got.src_info[e, begin : begin + count].long()
                q, scales = casts[source]
                rows = got.recv_x.view(torch.uint8)[e, begin : begin + count]
                assert torch.equal(rows, q.view(torch.uint8)[tokens])
                assert torch.equal(got.scales[e, begin : begin + count], scales[tokens])
                checked += count
        assert checked == int(got.recv_count.sum())


def test_low_latency_dispatch_refuses_too_many_tokens() -> None:
    x = [torch.zeros(1, 128, dtype=BF16), torch.zeros(4, 128, dtype=BF16)]
    ids = [torch.zeros(t.shape[0], 1, dtype=torch.int64) for t in x]
    with pytest.raises(InvalidArgument, match=r"x\[1\] must be of up to 3 rows; got .*\(4, 128\)"):
        low_latency_dispatch(x, ids, 3, 2)


def combined_value(values: list[float], weights: list[float], ids: list[int] | None = None) -> float:
    """One token of rank 0 that names experts 0, 1, ...; expert e's output is values[e]."""
    experts = len(values)
    topk = torch.tensor([list(range(experts)) if ids is None else ids])
    x = [torch.zeros(1, 8, dtype=BF16)]
    received = low_latency_dispatch(x, [topk], 1, experts)
    y = torch.tensor(values).view(experts, 1, 1).expand(experts, 1, 8).bfloat16()
    return float(low_latency_combine([y], [topk], [torch.tensor([weights])], received)[0][0, 0])


def test_low_latency_combine_order_fma_and_rounding() -> None:
    assert combined_value([2.0**24, 1.0, -(2.0**24)], [1.0, 1.0, 1.0]) == 0.0
    assert combined_value([2.0**24, 1.0, -(2.0**24)], [1.0, 1.0, 1.0], [0, 2, 1]) == 1.0  # k ascends, not experts
    assert combined_value([256.0, 1.0, 1.0], [1.0, 1.0, 1.0]) == 258.0
    # 3 * fl(1/3) = 1 + 2**-25 exactly, which a separate multiply would round to 1.
    assert combined_value([-1.0, 3.0], [1.0, float(torch.tensor(1.0) / 3)]) == 2.0**-25
    assert combined_value([5.0, 7.0], [0.5, 0.25], [1, 1]) == 5.25  # a repeated expert counts once per k
    assert combined_value([5.0, 7.0], [0.5, 0.25], [-1, 1]) == 1.75
    assert combined_value([5.0, 7.0], [0.5, 0.25], [2, 99]) == 0.0


def shuffled(received: LowLatencyReceived, x: Tensor, seed: int) -> tuple[LowLatencyReceived, Tensor]:
    """The same result in another order that DeepEP's contract allows: blocks and rows within them permuted."""
    generator = torch.Generator().manual_seed(seed)
    info, ranges, y = received.src_info.clone(), received.layout_range.clone(), torch.full_like(x, torch.nan)
    for e in range(info.shape[0]):
        place = 0
        for source in torch.randperm(ranges.shape[1], generator=generator).tolist():
            begin, count = divmod(int(received.layout_range[e, source]), 1 << 32)
            rows = begin + torch.randperm(count, generator=generator)
            info[e, place : place + count] = received.src_info[e, rows]
            y[e, place : place + count] = x[e, rows]
            ranges[e, source] = place << 32 | count
            place += count
    return dataclasses.replace(received, src_info=info, layout_range=ranges), y


@settings(max_examples=30, deadline=None)
@given(cases, st.integers(0, 2**31))
def test_low_latency_combine_does_not_depend_on_row_order(case: RandomCase, seed: int) -> None:
    shape, most = case.shape, max(1, case.shape.max_tokens)
    received = low_latency_dispatch(case.x, case.topk_idx, most, shape.num_experts)
    x = [r.recv_x * (rank + 1) for rank, r in enumerate(received)]
    expected = low_latency_combine(x, case.topk_idx, case.topk_weights, received)
    pairs = [shuffled(r, y, seed) for r, y in zip(received, x, strict=True)]
    other = low_latency_combine([p[1] for p in pairs], case.topk_idx, case.topk_weights, [p[0] for p in pairs])
    for rank in range(shape.num_ranks):
        assert expected[rank].dtype == BF16 and expected[rank].shape == case.x[rank].shape
        assert torch.equal(expected[rank], other[rank])


@settings(max_examples=30, deadline=None)
@given(cases)
def test_low_latency_round_trip_is_the_weight_sum(case: RandomCase) -> None:
    shape, most = case.shape, max(1, case.shape.max_tokens)
    weights = [(w * 4).floor() for w in case.topk_weights]  # whole numbers: no rounding before the last
    received = low_latency_dispatch(case.x, case.topk_idx, most, shape.num_experts)
    got = low_latency_combine([r.recv_x for r in received], case.topk_idx, weights, received)
    for rank, x in enumerate(case.x):
        used = (case.topk_idx[rank] >= 0) & (case.topk_idx[rank] < shape.num_experts)
        total = torch.where(used, weights[rank], 0.0).sum(1, keepdim=True)
        assert torch.equal(got[rank], (x.float() * total).bfloat16() + 0)


def test_masked_pairs_exchange_nothing_and_weights_stay() -> None:
    case = random_case(11, CaseShape(3, 6, 6, 128, 5), "uniform")  # every token names every expert
    masked: list[set[int]] = [set(), set(), {0}]  # rank 2 masks rank 0: both directions stop
    received = low_latency_dispatch(case.x, case.topk_idx, 5, 6, masked=masked)
    counts = [[int(r.layout_range[0, s]) & 0xFFFFFFFF for s in range(3)] for r in received]
    tokens = [x.shape[0] for x in case.x]
    assert min(tokens) > 0
    assert counts == [[tokens[0], tokens[1], 0], tokens, [0, tokens[1], tokens[2]]]
    weights = [torch.ones_like(w) for w in case.topk_weights]
    ones = [torch.ones_like(r.recv_x) for r in received]
    got = low_latency_combine(ones, case.topk_idx, weights, received, masked)
    assert [sorted(set(g.flatten().tolist())) for g in got] == [[4.0], [6.0], [4.0]]
    with pytest.raises(InvalidArgument, match=r"topk_idx\[0\].*no row"):
        low_latency_combine(ones, case.topk_idx, weights, received)


def test_low_latency_combine_in_logfmt_decodes_before_the_weight() -> None:
    case = random_case(2, CaseShape(2, 4, 1, 1024, 6), "uniform")
    case = dataclasses.replace(case, x=[(x.float().tanh() * 0.9).bfloat16() for x in case.x])
    received = low_latency_dispatch(case.x, case.topk_idx, 6, 4)
    x = [r.recv_x for r in received]
    got = low_latency_combine(x, case.topk_idx, case.topk_weights, received, use_logfmt=True)
    plain = low_latency_combine(x, case.topk_idx, case.topk_weights, received)
    for rank, own in enumerate(case.x):
        expected = (logfmt_decode(logfmt_encode(own)) * case.topk_weights[rank]).bfloat16()
        assert torch.equal(got[rank], expected)
    assert any(not torch.equal(a, b) for a, b in zip(got, plain, strict=True))


def test_low_latency_combine_in_fp8_decodes_before_the_weight() -> None:
    case = random_case(3, CaseShape(2, 4, 1, 384, 6), "uniform")
    received = low_latency_dispatch(case.x, case.topk_idx, 6, 4)
    rows = [r.recv_x for r in received]
    got = low_latency_combine(rows, case.topk_idx, case.topk_weights, received, use_fp8=True)
    for rank, own in enumerate(case.x):
        blocks = own.float().unflatten(1, (3, 128))
        amax = blocks.abs().amax(2, keepdim=True)
        codes = (blocks * (448 / amax.double()).float()).to(torch.float8_e4m3fn).float()
        values = (codes * (amax * torch.tensor(1 / 448, dtype=torch.float32))).flatten(1)
        assert torch.equal(got[rank], (values * case.topk_weights[rank]).bfloat16())


def test_both_modes_deliver_the_same_rows() -> None:
    case = random_case(4, CaseShape(4, 4, 2, 128, 9), "uniform")  # one expert a rank: the same rows per rank
    inputs = [
        ThroughputInput(x, dispatch_layout(ids, 4, 4).is_token_in_rank)
        for x, ids in zip(case.x, case.topk_idx, strict=True)
    ]
    throughput = throughput_dispatch(inputs, 4)
    for high, low in zip(throughput, low_latency_dispatch(case.x, case.topk_idx, 9, 4), strict=True):
        assert high.num_rows == int(low.recv_count[0])
        assert hash_tensor(high.recv_x) == hash_tensor(low.recv_x[0, : high.num_rows])
        assert torch.equal(high.src_token, low.src_info[0, : high.num_rows])
