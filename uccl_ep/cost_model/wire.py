"""Sizes of what our kernels write, in bytes, as the native layouts have them; formats by the names that users give."""

from __future__ import annotations

from uccl_ep import _native
from uccl_ep.errors import one_of, refuse

_Format = _native.RowFormat
FORMATS = {"bf16": _Format.BF16, "fp8": _Format.FP8, "fp8-ue8m0": _Format.FP8_UE8M0, "nvfp4": _Format.NVFP4}
"""Of low-latency dispatch rows."""

COMBINE_FORMATS = {
    "bf16": _Format.BF16,
    "logfmt": _Format.LOGFMT,
    "fp8": _Format.FP8,
    "mxfp8": _Format.MXFP8,
    "nvfp4": _Format.NVFP4_ROW,
}
"""Of low-latency combine rows; all but bf16 are asked for by a keyword, use_ and the name."""


def row_bytes(hidden: int, row_format: str) -> int:
    """A low-latency dispatch row with its scales.

    Raises:
        InvalidArgument: no such format.
    """
    if row_format not in FORMATS:
        refuse("row_format", row_format, one_of(FORMATS))
    return _native.LowLatencyLayout.row_bytes(hidden, FORMATS[row_format])


def batch_tokens(hidden: int, row_format: str) -> int:
    """Tokens that a warp stages before it sends; a run of neighbours within a batch is one write."""
    return _native.LowLatencyCalls.batch_rows(row_bytes(hidden, row_format))


def combine_row_bytes(hidden: int, combine_format: str) -> int:
    """A low-latency combine row; in logfmt-10 the least that it can be, when every unit can be encoded.

    Raises:
        InvalidArgument: the format is none of COMBINE_FORMATS.
    """
    if combine_format not in COMBINE_FORMATS:
        refuse("combine_format", combine_format, one_of(COMBINE_FORMATS))
    if combine_format == "logfmt":
        return _native.logfmt_least_bytes(hidden)
    return _native.LowLatencyLayout.row_bytes(hidden, COMBINE_FORMATS[combine_format])


def geometry(unit_bytes: int, wanted: int, one_row: int) -> _native.StreamGeometry:
    """How streams are cut for a call whose larger row (of dispatch and its combine) has `one_row` bytes: with `wanted`
    channels, or as many as fit.

    Raises:
        InvalidArgument: not even one fits.
    """
    fitted = _native.StreamGeometry.fit(unit_bytes, wanted, one_row)
    if fitted.num_slots == 0:
        refuse("unit_bytes", unit_bytes, f"enough for two rows of {one_row} bytes")
    return fitted
