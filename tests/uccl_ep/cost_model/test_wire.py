"""Sizes of what kernels write, by the numbers: a change of a native layout shows here before it shows in a figure."""

from __future__ import annotations

import pytest

from uccl_ep import _native
from uccl_ep.cost_model import wire
from uccl_ep.errors import InvalidArgument


def test_wire_dispatch_rows_and_their_scales() -> None:
    assert {form: wire.row_bytes(7168, form) for form in wire.FORMATS} == {
        "bf16": 14336,
        "fp8": 7168 + 4 * 56,
        "fp8-ue8m0": 7168 + 56 + 8,  # in whole 16 bytes
        "nvfp4": 3584 + 448,
    }
    assert wire.row_bytes(8, "fp8") == 16 and wire.row_bytes(136, "fp8-ue8m0") == 144
    with pytest.raises(InvalidArgument, match="row_format must be bf16, fp8, fp8-ue8m0 or nvfp4; got "):
        wire.row_bytes(128, "fp3")


def test_wire_combine_rows() -> None:
    layout = _native.LowLatencyLayout()
    layout.hidden = 7168
    sizes = [wire.combine_row_bytes(7168, form) for form in wire.COMBINE_FORMATS]
    assert (
        sizes == [14336, 9200, 7168 + 56 * 4, 7168 + 224, 3584 + 448 + 16] and max(sizes) < layout.combine_row_bytes()
    )
    assert wire.combine_row_bytes(512, "logfmt") == 16 + 4 * 4 + 640  # one unit of 512 channels
    with pytest.raises(InvalidArgument, match="combine_format must be bf16, logfmt, fp8, mxfp8 or nvfp4; got "):
        wire.combine_row_bytes(7168, "fp4")


def test_wire_batches_and_blocks() -> None:
    assert [wire.batch_tokens(7168, f) for f in ("bf16", "fp8", "nvfp4")] == [18, 32, 32]
    assert wire.batch_tokens(1 << 18, "bf16") == 1
    layout = _native.LowLatencyLayout
    assert [layout.routing_bytes(*s) for s in ((128, 8), (0, 8), (1, 1))] == [16 + 2048, 16, 32]
    assert [layout.weights_bytes(*s) for s in ((128, 8), (0, 8), (1, 1))] == [16 + 6144, 16, 32]
    assert _native.ThroughputLayout.counts_bytes(2, 3, 5) == 48 + 4 * (2 * 4 + 15) + 4
    assert (_native.EXPECT_BYTES, _native.IDENTITY_BYTES) == (48, 16)


def test_wire_throughput_rows() -> None:
    shape = _native.RowShape(1024, 8, 3, has_ids=True, has_weights=True)
    assert shape.bytes() == 16 + 1024 + 8 + 12 + 6 + 6  # in whole 16 bytes
    assert _native.RowShape(1024, topk=3, has_weights=True).bytes() == 16 + 1024 + 12 + 4
    assert _native.RowShape(1024, 8, 3).bytes() == 16 + 1024 + 8 + 8  # neither ids nor weights


def test_wire_channels_shrink_with_the_memory() -> None:
    assert wire.geometry(1 << 20, 8, 1024).num_channels == 8
    fitted = wire.geometry(9 * 1024, 8, 1024)
    assert (fitted.num_channels, fitted.rows_per_chunk, fitted.num_slots) == (4, 1, 2)
    with pytest.raises(InvalidArgument, match="unit_bytes must be enough for two rows of 1024 bytes; got 1024"):
        wire.geometry(1024, 8, 1024)
