"""Row formats of a low-latency dispatch: what kernels are told and write into, and the views that callers get."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from uccl_ep._native import LowLatencyLayout, RowFormat
from uccl_ep.errors import Described, refuse

Tensor = torch.Tensor

BF16, FP8, FP8_UE8M0, NVFP4 = RowFormat.BF16, RowFormat.FP8, RowFormat.FP8_UE8M0, RowFormat.NVFP4
NVFP4_UNIT = LowLatencyLayout.row_unit(NVFP4)  # channels whose NVFP4 scales fill a word
TILE_ROWS = 128  # rows whose NVFP4 scales lie together


@dataclass(frozen=True)
class Format:
    """How rows travel.

    Attributes:
        code: one of BF16, FP8, FP8_UE8M0, NVFP4.
        round_scale: FP8 scales are powers of two.
        global_scale: float32, its first element is what NVFP4 scales are multiplied by.
    """

    code: int = BF16
    round_scale: bool = False
    global_scale: Tensor | None = None


@dataclass
class ReceivedRows:
    """Where a dispatch puts rows and scales, as kernels write them: x [L, P, payload], scales or None."""

    code: int
    x: Tensor
    scales: Tensor | None

    @classmethod
    def make(cls, device: Any, code: int, local: int, rows: int, hidden: int) -> ReceivedRows:
        """Uninitialised tensors for `rows` (P) rows of each of `local` (L) experts."""
        if code == NVFP4:
            x = device.empty(local, rows, hidden // 2, dtype=torch.uint8)
            tiles, words = -(-rows // TILE_ROWS), hidden // NVFP4_UNIT
            scales = device.empty(local, tiles, words, 32, 4, 4, dtype=torch.float8_e4m3fn)
            return cls(code, x, scales)
        x = device.empty(local, rows, hidden, dtype=torch.bfloat16 if code == BF16 else torch.float8_e4m3fn)
        if code == BF16:
            return cls(code, x, None)
        if code == FP8:
            return cls(code, x, device.empty(local, hidden // 128, rows, dtype=torch.float32))
        return cls(code, x, device.empty(local, -(-hidden // 512), rows, dtype=torch.int32))

    def view(self) -> Tensor | tuple[Tensor, Tensor]:
        """What callers get: rows, or (rows, scales), in DeepEP's shapes; see Buffer.low_latency_dispatch."""
        if self.scales is None:
            return self.x
        if self.code == NVFP4:
            return self.x.permute(1, 2, 0), self.scales.permute(3, 4, 1, 5, 2, 0)
        return self.x, self.scales.transpose(1, 2)


def global_scale_of(x_global_scale: Any, look: bool) -> Tensor:
    """`x_global_scale` of an NVFP4 dispatch, checked: float32 of one element, or of several that are all the same.

    Args:
        look: its value may be read now (it is in host memory).

    Raises:
        InvalidArgument: it is something else, or its value is not finite and above 0.
    """
    allowed = "a float32 tensor of one element with use_nvfp4=True"
    hint = "448 * 6 / (largest magnitude of x on any rank) uses the formats' whole range."
    if not isinstance(x_global_scale, Tensor):
        refuse("x_global_scale", x_global_scale, allowed, hint)
    good = x_global_scale.dtype == torch.float32 and x_global_scale.layout == torch.strided
    if not good or x_global_scale.numel() == 0 or not x_global_scale.is_contiguous():
        refuse("x_global_scale", x_global_scale, allowed, hint)
    if look:
        low, high = (float(v) for v in x_global_scale.detach().aminmax())
        if low != high:
            refuse("x_global_scale", Described(f"values from {low} to {high}"), "one value for all rows", hint)
        if not 0 < low < float("inf"):
            refuse("x_global_scale", low, "a finite number above 0", hint)
    return x_global_scale
