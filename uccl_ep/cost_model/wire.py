"""Sizes of what our kernels write, in bytes: the formulas of kernels/layout/*.h again, in Python.

Written a second time on purpose: tests hold them against the native module's, so neither can change alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from uccl_ep.errors import one_of, refuse
from uccl_ep.sizes import round_up

FORMATS = ("bf16", "fp8", "fp8-ue8m0", "nvfp4")
"""Of low-latency dispatch rows, in the order of RowFormat."""

COMBINE_FORMATS = ("bf16", "logfmt", "fp8")
"""Of low-latency combine rows, in the order of CombineFormat."""

EXPECT_BYTES = 48
"""ExpectHeader (proxy/wire/control.h): how many writes to expect, what its sender has read, and which call it is."""

IDENTITY_BYTES = 16
"""CallIdentity (proxy/wire/identity.h), which a throughput call without counts sends to each rank of other nodes."""

WARP = 32  # lanes: the most tokens that a warp sends together
MOST_CHANNELS = 64
_BATCH_BYTES = 1 << 18  # uccl_ep/low_latency/launch.py
_WANTED_CHUNK_BYTES = 256 << 10  # kernels/layout/throughput.h
_MIN_SLOTS, _MAX_SLOTS = 2, 256
_SCALE_CHANNELS, _NVFP4_CHANNELS = 128, 16


def row_bytes(hidden: int, row_format: str) -> int:
    """A low-latency dispatch row with its scales.

    Raises:
        InvalidArgument: no such format.
    """
    groups = -(-hidden // _SCALE_CHANNELS)
    if row_format == "bf16":
        return round_up(2 * hidden, 16)
    if row_format == "fp8":
        return round_up(hidden + 4 * groups, 16)
    if row_format == "fp8-ue8m0":
        return round_up(hidden + round_up(groups, 4), 16)
    if row_format == "nvfp4":
        return round_up(-(-hidden // 2) + round_up(-(-hidden // _NVFP4_CHANNELS), 4), 16)
    refuse("row_format", row_format, one_of(FORMATS))


def routing_bytes(tokens: int, topk: int) -> int:
    """A source's routing block: 16 bytes, then 2 an id."""
    return round_up(16 + 2 * tokens * topk, 16)


def batch_tokens(hidden: int, row_format: str) -> int:
    """Tokens that a warp stages before it sends; a run of neighbours within a batch is one write."""
    return max(1, min(WARP, _BATCH_BYTES // row_bytes(hidden, row_format)))


def combine_row_bytes(hidden: int, combine_format: str) -> int:
    """A low-latency combine row.

    In logfmt-10 when every unit can be encoded: the least it can be (kernels/low_latency/logfmt.h).

    Raises:
        InvalidArgument: the format is none of COMBINE_FORMATS.
    """
    if combine_format == "logfmt":
        return round_up(16 + hidden // 128 * 4 + hidden * 10 // 8, 16)
    if combine_format not in COMBINE_FORMATS:
        refuse("combine_format", combine_format, one_of(COMBINE_FORMATS))
    return row_bytes(hidden, combine_format)


def weights_bytes(tokens: int, topk: int) -> int:
    """A source's top-k weights, float32, and ids, 2 bytes each: what another node needs to sum its rows."""
    return round_up(16 + 6 * tokens * topk, 16)


def counts_bytes(channels: int, readers: int, local_experts: int) -> int:
    """What a source tells a cell before a throughput dispatch (CountsHeader and the words behind it)."""
    return round_up(48 + 4 * (channels * (1 + readers) + readers * local_experts), 16)


@dataclass(frozen=True)
class RowShape:
    """A throughput row: header, payload, scales, weights, ids. See RowShape in kernels/layout/throughput.h."""

    payload_bytes: int
    scale_bytes: int = 0
    topk: int = 0
    has_ids: bool = False
    has_weights: bool = False

    @property
    def num_bytes(self) -> int:
        """Bytes of the row."""
        extras = self.topk * (4 * self.has_weights + 2 * self.has_ids)
        return round_up(16 + self.payload_bytes + self.scale_bytes + extras, 16)


@dataclass(frozen=True)
class Geometry:
    """How a throughput stream is cut.

    Attributes:
        rows_per_chunk: rows of one write at most.
        num_slots: chunks of a ring; 0: it does not fit.
    """

    rows_per_chunk: int
    num_slots: int

    @classmethod
    def make(cls, unit_bytes: int, channels: int, one_row: int) -> Geometry:
        """As StreamGeometry::make."""
        rows = unit_bytes // channels // 128 * 128 // one_row
        per_chunk = max(1, min(_WANTED_CHUNK_BYTES // one_row, rows // 8))
        slots = min(rows // per_chunk, _MAX_SLOTS)
        return cls(per_chunk, slots if slots >= _MIN_SLOTS else 0)


def fit_channels(unit_bytes: int, wanted: int, one_row: int) -> int:
    """Channels of a call whose larger row (of dispatch and its combine) has `one_row` bytes.

    Raises:
        InvalidArgument: not even one fits.
    """
    for channels in range(wanted, 0, -1):
        if Geometry.make(unit_bytes, channels, one_row).num_slots:
            return channels
    refuse("unit_bytes", unit_bytes, f"enough for {_MIN_SLOTS} rows of {one_row} bytes")
