"""Sizes in Python are the native module's, for any shape."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uccl_ep import _native
from uccl_ep.cost_model import wire
from uccl_ep.errors import InvalidArgument


@given(hidden=st.integers(1, 2048).map(lambda h: 8 * h), code=st.integers(0, 3))
def test_wire_row_bytes_are_the_kernels(hidden: int, code: int) -> None:
    assert wire.row_bytes(hidden, wire.FORMATS[code]) == _native.LowLatencyLayout.row_bytes(hidden, code)


@given(
    payload=st.integers(1, 4096).map(lambda p: 16 * p), scales=st.integers(0, 64), topk=st.integers(0, 32),
    ids=st.booleans(), weights=st.booleans(),
)  # fmt: skip
def test_wire_row_shape_is_the_kernels(payload: int, scales: int, topk: int, ids: bool, weights: bool) -> None:
    shape = _native.RowShape()
    shape.payload_bytes, shape.scale_bytes, shape.topk = payload, 4 * scales, topk
    shape.has_ids, shape.has_weights = int(ids), int(weights)
    assert wire.RowShape(payload, 4 * scales, topk, ids, weights).num_bytes == shape.bytes()


@given(
    unit=st.integers(0, 1 << 26).map(lambda u: u // 128 * 128), channels=st.integers(1, 64),
    row=st.integers(1, 8192).map(lambda r: 16 * r),
)  # fmt: skip
def test_wire_geometry_is_the_kernels(unit: int, channels: int, row: int) -> None:
    native, ours = _native.StreamGeometry.make(unit, channels, row), wire.Geometry.make(unit, channels, row)
    assert (ours.rows_per_chunk, ours.num_slots) == (native.rows_per_chunk, native.num_slots)


def test_wire_constants_are_the_kernels() -> None:
    assert (wire.WARP, wire.MOST_CHANNELS) == (_native.WARP, _native.MAX_CHANNELS)
    layout = _native.LowLatencyLayout()
    layout.hidden = 7168
    sizes = [wire.combine_row_bytes(7168, form) for form in wire.COMBINE_FORMATS]
    assert sizes == [14336, 9200, 7168 + 56 * 4] and max(sizes) < layout.combine_row_bytes()
    with pytest.raises(InvalidArgument, match="combine_format must be bf16, logfmt or fp8; got "):
        wire.combine_row_bytes(7168, "fp4")


def test_wire_batches_and_blocks() -> None:
    assert [wire.batch_tokens(7168, f) for f in ("bf16", "fp8", "nvfp4")] == [18, 32, 32]
    assert wire.batch_tokens(1 << 18, "bf16") == 1
    assert wire.routing_bytes(128, 8) == 16 + 2048 and wire.routing_bytes(0, 8) == 16 and wire.routing_bytes(1, 1) == 32
    for tokens, topk in ((128, 8), (0, 8), (1, 1), (7, 3)):
        assert wire.weights_bytes(tokens, topk) == _native.LowLatencyLayout.weights_bytes(tokens, topk)
    assert wire.weights_bytes(128, 8) == 16 + 6144
    assert wire.counts_bytes(2, 3, 5) == 48 + 4 * (2 * 4 + 15) + 4


def test_wire_channels_shrink_with_the_memory() -> None:
    assert wire.fit_channels(1 << 20, 8, 1024) == 8
    assert wire.fit_channels(9 * 1024, 8, 1024) == 4
    with pytest.raises(InvalidArgument, match="unit_bytes"):
        wire.fit_channels(1024, 8, 1024)
    with pytest.raises(InvalidArgument, match="row_format"):
        wire.row_bytes(128, "fp3")
