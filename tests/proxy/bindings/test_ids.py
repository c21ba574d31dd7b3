"""The range of top-k ids: as torch finds it, for both widths."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from uccl_ep import _native


@given(ids=st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=70))
def test_ids_range_of_int64(ids: list[int]) -> None:
    tensor = torch.tensor(ids, dtype=torch.int64)
    assert _native.range_of_ids(tensor.data_ptr(), len(ids), True) == (min(ids), max(ids))


@given(ids=st.lists(st.integers(-(1 << 31), (1 << 31) - 1), min_size=1, max_size=70))
def test_ids_range_of_int32(ids: list[int]) -> None:
    tensor = torch.tensor(ids, dtype=torch.int32)
    assert _native.range_of_ids(tensor.data_ptr(), len(ids), False) == (min(ids), max(ids))


def test_ids_range_of_none_is_refused() -> None:
    with pytest.raises(ValueError, match="count is 0; allowed: 1 or more"):
        _native.range_of_ids(0, 0, True)
