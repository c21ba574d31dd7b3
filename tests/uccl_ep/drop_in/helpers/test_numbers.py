"""`deep_ep.utils.math`: small numbers worked out by hand, and casts that come back."""

from __future__ import annotations

import pytest
import torch

from uccl_ep.drop_in.helpers import numbers
from uccl_ep.reference import cast_fp8


def test_numbers_sums_and_quotients() -> None:
    assert [numbers.ceil_div(x, 4) for x in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert [numbers.align(x, 4) for x in (0, 1, 4, 5)] == [0, 4, 4, 8]
    assert numbers.safe_div(0, 0) == 0 and numbers.safe_div(3, 4) == 0.75
    with pytest.raises(ZeroDivisionError):
        numbers.safe_div(1, 0)
    x = torch.arange(6, dtype=torch.int32)
    assert numbers.count_bytes(x, None, (x.byte(), [x])) == 24 + 6 + 24
    assert numbers.hash_tensors(x, (x + 1, None), "no tensor") == 15 ^ 21
    assert numbers.calc_diff(x, x) == pytest.approx(0, abs=1e-12) and numbers.calc_diff(x, x * 2) > 0.1


@pytest.mark.parametrize("hidden", [128, 256, 200])
def test_numbers_casts_come_back(hidden: int) -> None:
    x = torch.randn(5, hidden, generator=torch.Generator().manual_seed(hidden)).bfloat16()
    q, scales = numbers.per_token_cast_to_fp8(x)
    assert q.shape == x.shape and q.dtype == torch.float8_e4m3fn and scales.shape == (5, -(-hidden // 128))
    assert numbers.calc_diff(numbers.per_token_cast_back(q, scales), x) < 1e-3
    if hidden % 128 == 0:
        assert torch.equal(q.view(torch.uint8), cast_fp8(x)[0].view(torch.uint8))  # as low_latency_dispatch casts
    assert numbers.per_token_cast_back(q[:0], scales[:0]).shape == (0, hidden)


def test_numbers_packed_exponents_are_powers_of_two() -> None:
    x = torch.randn(3, 512, generator=torch.Generator().manual_seed(1)).bfloat16()
    q, packed = cast_fp8(x, round_scale=True, use_ue8m0=True)
    plain = cast_fp8(x, round_scale=True)
    assert torch.equal(numbers.per_token_cast_back(q, packed), numbers.per_token_cast_back(*plain))


def test_numbers_choices() -> None:
    ids = torch.tensor([[3, 1, 3, -1], [0, 0, 0, 0], [-1, -1, -1, -1], [2, 1, 0, 3]])
    numbers.inplace_unique(ids, 4)
    assert ids.tolist() == [[3, 1, -1, -1], [0, -1, -1, -1], [-1] * 4, [3, 2, 1, 0]]
    scores = numbers.create_grouped_scores(torch.ones(2, 6), torch.tensor([[0, 2], [1, 1]]), 3)
    assert scores.tolist() == [[1, 1, 0, 0, 1, 1], [0, 0, 1, 1, 0, 0]]


def test_numbers_bytes_in_words() -> None:
    texts = {"1G": 1 << 30, " 64M ": 64 << 20, "512k": 512 << 10, "1.5KiB": 1536, "1048576": 1 << 20, "2tb": 2 << 40}
    assert {text: numbers.parse_num_bytes(text) for text in texts} == texts
    for wrong in ("", "x", "0", "0.2", "-1", "1.2.3", "5q"):
        with pytest.raises(ValueError, match="no number of bytes"):
            numbers.parse_num_bytes(wrong)
