"""Index tables of expanded results against plain loops, over random routes, alignments and sizes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from uccl_ep.elastic import expand

Tensor = torch.Tensor


def random_ids(seed: int, tokens: int, topk: int, local: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(tokens, local + topk, generator=generator)  # the last topk of them stand for experts elsewhere
    ids = scores.topk(topk, dim=1).indices
    return torch.where(ids < local, ids, -1)


def by_loops(ids: Tensor, local: int, alignment: int) -> tuple[list[list[int]], list[int]]:
    """Row of each (token, k), and the choice in each row (-1: padding)."""
    rows, choices = [[-1] * ids.shape[1] for _ in range(ids.shape[0])], []
    for expert in range(local):
        for token in range(ids.shape[0]):
            for k in range(ids.shape[1]):
                if ids[token, k] == expert:
                    rows[token][k] = len(choices)
                    choices.append(token * ids.shape[1] + k)
        while len(choices) % alignment:
            choices.append(-1)
    return rows, choices


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 20),
    tokens=st.integers(0, 13),
    topk=st.integers(1, 5),
    local=st.integers(1, 6),
    alignment=st.sampled_from([1, 2, 7, 8]),
)
def test_expand_tables_are_those_of_loops(seed: int, tokens: int, topk: int, local: int, alignment: int) -> None:
    ids = random_ids(seed, tokens, topk, local)
    counts = expand.count_experts(ids, local, alignment)
    rows = expand.expanded_rows(ids, counts)
    wanted_rows, wanted_choices = by_loops(ids, local, alignment)
    assert rows.tolist() == wanted_rows
    total = len(wanted_choices)
    assert int(counts.aligned_ends[-1]) == total
    assert total <= expand.worst_rows(tokens, topk, local, alignment)
    choices = expand.choice_of_row(rows, total + 3)
    assert choices.tolist() == wanted_choices + [-1] * 3
    for expert in range(local):
        own = wanted_choices[int(counts.begin[expert]) : int(counts.end[expert])]
        assert len(own) == int(counts.real[expert]) and all(ids.flatten()[c] == expert for c in own)

    x = torch.randn(tokens, 8, generator=torch.Generator().manual_seed(seed)).bfloat16()
    weights = torch.rand(tokens, topk, generator=torch.Generator().manual_seed(seed))
    taken = expand.take_rows(x, choices, topk, zero_padding=True)
    spread = expand.spread_weights(weights, choices)
    for row, choice in enumerate(choices.tolist()):
        assert torch.equal(taken[row], x[choice // topk] if choice >= 0 else torch.zeros(8).bfloat16())
        assert spread[row] == (weights.flatten()[choice] if choice >= 0 else 0)
    back = expand.gather_weights(spread, rows)
    assert torch.equal(back, torch.where(ids >= 0, weights, 0.0))
    reduced = expand.reduce_rows(taken, rows)
    for token in range(tokens):
        times = int((ids[token] >= 0).sum())
        assert torch.equal(reduced[token], (sum((x[token].float() for _ in range(times)), torch.zeros(8))).bfloat16())


def test_expand_sums_over_ascending_k_and_rounds_once() -> None:
    big, small = torch.full((1, 8), 256.0), torch.full((1, 8), 0.75)
    x = torch.cat([big, small, small, -big]).bfloat16()
    rows = torch.tensor([[0, 1, 2, -1], [1, -1, 0, 3], [-1, -1, -1, -1]])
    reduced = expand.reduce_rows(x, rows)
    assert reduced[:, 0].tolist() == [258.0, 0.75, 0.0]  # 257.5 is rounded once, to even; two roundings give 256
    assert expand.last_choice(torch.tensor([[-1, 4, 2], [-1, -1, -1], [0, 1, -1]])).tolist() == [2, -1, 1]
    assert expand.row_of_choice(x, rows, 2)[:, 0].tolist() == [0.75, 256.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint8, torch.int32, torch.float32])
def test_expand_takes_rows_of_any_dtype(dtype: torch.dtype) -> None:
    values = torch.arange(12).view(3, 4).to(dtype)
    taken = expand.take_rows(values, torch.tensor([5, -1, 0]), 2, zero_padding=True)
    assert taken.dtype == dtype and taken.float().tolist() == [[8, 9, 10, 11], [0] * 4, [0, 1, 2, 3]]
    nothing = expand.take_rows(values[:0], torch.tensor([-1, -1]), 2, zero_padding=False)
    assert nothing.shape == (2, 4) and nothing.dtype == dtype


@pytest.mark.parametrize("rows", [0, 1, 4, 5, 131])
def test_expand_column_major_scales(rows: int) -> None:
    scales = torch.arange(rows * 3, dtype=torch.int32).view(rows, 3)
    stored = expand.column_major(scales)
    assert torch.equal(stored, scales) and stored.dtype == torch.int32
    assert stored.stride() == (1, -(-rows // 4) * 4) or rows == 0


def test_expand_worst_rows() -> None:
    assert expand.worst_rows(10, 4, 2, 1) == 20  # a token has at most 2 experts here
    assert expand.worst_rows(10, 2, 3, 128) == 512  # 20 rows and 3 paddings of up to 127
    ids = torch.zeros(10, 1, dtype=torch.int64)
    assert int(expand.count_experts(ids, 3, 128).aligned_ends[-1]) == 128 <= expand.worst_rows(10, 1, 3, 128)
