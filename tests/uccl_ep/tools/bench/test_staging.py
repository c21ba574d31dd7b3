"""Buffers are kept and grow; rows are added by index, across pieces, with and without weights."""

from __future__ import annotations

import pytest
import torch

from uccl_ep.tools.bench.staging import Staging, add_rows


def test_bench_staging_keeps_and_grows() -> None:
    staging = Staging(32)
    first = staging.rows("sent", 5)
    assert first.shape == (5, 32) and first.dtype == torch.bfloat16
    assert staging.rows("sent", 3).data_ptr() == first.data_ptr() and len(staging.rows("sent", 0)) == 0
    assert (
        len(staging.rows("sent", 9)) == 9 and staging.rows("back", 5).data_ptr() != staging.rows("sent", 5).data_ptr()
    )


def test_bench_staging_picks_rows_and_zeroes_sums() -> None:
    staging = Staging(16)
    rows = torch.arange(5).bfloat16().unsqueeze(1).expand(5, 16)
    assert staging.picked("packed", rows, torch.tensor([4, 0, 4]))[:, 3].tolist() == [4.0, 0.0, 4.0]
    assert len(staging.picked("packed", rows, torch.tensor([], dtype=torch.int64))) == 0
    staging.sums(3).fill_(7.0)
    again = staging.sums(2)
    assert again.shape == (2, 16) and again.dtype == torch.float32 and not again.any()
    assert not staging.sums(6).any()


@pytest.mark.parametrize("count", [0, 1, 64, 65, 200])
def test_bench_add_rows_is_the_plain_loop(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    rows = torch.randn(count, 16, generator=generator).bfloat16()
    index = torch.randint(0, 7, (count,), generator=generator)
    weight = torch.rand(count, generator=generator)
    for weights in (None, weight):
        out, by_hand = torch.zeros(7, 16), torch.zeros(7, 16)
        add_rows(out, rows, index, weights)
        for i in range(count):
            by_hand[index[i]] += rows[i].float() * (1.0 if weights is None else float(weights[i]))
        torch.testing.assert_close(out, by_hand)
