"""Handles of low latency: what lies behind src_info, and what is no handle."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from tests.uccl_ep.ranks import assert_refused
from uccl_ep import InvalidArgument
from uccl_ep.low_latency.handle import check_handle, planes_of


def handle_of(src_info: torch.Tensor | None = None) -> tuple[Any, ...]:
    planes = torch.arange(3 * 2 * 8 + 1, dtype=torch.int32)[:48].view(3, 2, 8)  # the dispatch's number is behind them
    return (planes[0] if src_info is None else src_info, torch.zeros(2, 2, dtype=torch.int64), 4, 128, 4)


def test_low_latency_planes_lie_behind_src_info() -> None:
    handle = handle_of()
    planes = (ctypes.c_int32 * 48).from_address(planes_of(handle))  # type: ignore[arg-type]
    assert list(planes) == list(range(48))
    assert planes_of((*handle,)) == handle[0].data_ptr()  # type: ignore[arg-type]


@pytest.mark.parametrize("change", ["clone", "second plane", "transposed", "layout"])
def test_low_latency_planes_of_a_copy_are_refused(change: str) -> None:
    handle = handle_of()
    src_info, layout = handle[0], handle[1]
    if change == "clone":
        src_info = src_info.clone()
    elif change == "second plane":
        planes = src_info.untyped_storage()
        src_info = torch.empty(0, dtype=torch.int32).set_(planes, 16, (2, 8))  # type: ignore[call-overload]
    elif change == "transposed":
        src_info = torch.zeros(3, 8, 2, dtype=torch.int32)[0].T
    else:
        layout = torch.zeros(2, 2, dtype=torch.int64).T[:, ::1].T.expand(2, 2)[:, [1, 0]].T
        assert not layout.is_contiguous()
    with pytest.raises(InvalidArgument, match="handle: its src_info is not the tensor that low_latency_dispatch"):
        planes_of((src_info, layout, *handle[2:]))  # type: ignore[arg-type]


def test_low_latency_check_handle() -> None:
    good = handle_of()
    assert check_handle(good, 2) == check_handle(list(good), 2) == (4, 128, 4)
    wanted = ["handle=", "low_latency_dispatch of this Buffer returned"]
    bad: list[Any] = [
        None, 5, good[:4], (*good, 1), (good[0], good[1], 4.0, 128, 4), (None, *good[1:]),
        (good[0].long(), *good[1:]), (good[0], good[1].int(), *good[2:]), (good[0][:1], *good[1:]),
    ]  # fmt: skip
    for handle in bad:
        assert_refused(lambda h=handle: check_handle(h, 2), wanted)
    assert_refused(lambda: check_handle((good[0],) * 6, 2), ["handle=one of dispatch", "Pass it to combine."])
    for ranks in (1, 4):  # of a group of another size
        assert_refused(
            lambda n=ranks: check_handle(good, n), ["handle=a tensor of shape (2, 8), torch.int32", "this Buffer"]
        )
