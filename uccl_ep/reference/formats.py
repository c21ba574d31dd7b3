"""Number formats of the oracle: float8 with scales, MXFP8, NVFP4, logfmt-10, and two ways to compare tensors.

Exact arithmetic in plain torch on the CPU; Rules: DeepEP V1's documented numerics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from uccl_ep.errors import refuse

BLOCK = 128  # channels that share one scale, or one logfmt range
FP8_MAX = 448.0  # largest finite float8_e4m3fn
AMAX_FLOOR = 1e-4  # a block of zeros still gets a scale
MXFP8_BLOCK = 32  # channels that share one MXFP8 exponent
NVFP4_BLOCK = 16  # channels that share one NVFP4 scale
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # NVFP4 magnitudes by code; bit 3 is the sign
LOGFMT_CODES = 512  # magnitudes of 9 bits; with the sign, 10 bits a value
LOGFMT_MAX_OCTAVES = 32  # smaller magnitudes than amax * 2**-32 become zero


def cast_fp8(x: Tensor, round_scale: bool = False, use_ue8m0: bool = False) -> tuple[Tensor, Tensor]:
    """Quantise to float8 per 128 channels, to the bit as the low-latency kernels must.

    Per block: amax = max(1e-4, max |x|); scale_inv = amax * float32(1 / 448); q = e4m3(x * (448 / amax)). With
    `round_scale`, scale_inv = 2**e with e = ceil(log2(amax * float32(1 / 448))) from the float's bits, and q =
    e4m3(x * 2**-e).

    Args:
        x: bf16 or f32 [..., H], H a multiple of 128 (512 with `use_ue8m0`).
        round_scale: make scales powers of two.
        use_ue8m0: return exponents only, four to an int32, the first in the lowest byte; needs `round_scale`.

    Returns:
        q float8_e4m3fn [..., H], and scale_inv: f32 [..., H/128], or int32 [..., H/512].

    Raises:
        InvalidArgument: H or the combination of flags is not allowed.
    """
    if use_ue8m0 and not round_scale:
        refuse("use_ue8m0", use_ue8m0, "False without round_scale=True", "An exponent holds powers of two only.")
    unit = 4 * BLOCK if use_ue8m0 else BLOCK
    if x.shape[-1] % unit:
        refuse("hidden", x.shape[-1], f"a multiple of {unit}")
    blocks = torch.unflatten(x.float(), -1, (-1, BLOCK))
    amax = blocks.abs().amax(-1, keepdim=True).clamp_min(AMAX_FLOOR)
    scale_inv = amax * torch.full_like(amax, 1.0 / FP8_MAX)
    if round_scale:
        bits = scale_inv.view(torch.int32)
        exponent = (bits >> 23) - 127 + ((bits & 0x7FFFFF) != 0).int()
        scale = ((127 - exponent) << 23).view(torch.float32)
        scale_inv = ((127 + exponent) << 23).view(torch.float32)
    else:
        # Tensor by tensor on purpose: torch turns `448.0 / amax` into 448 * reciprocal, which rounds twice.
        scale = torch.full_like(amax, FP8_MAX) / amax
    q = (blocks * scale).to(torch.float8_e4m3fn).flatten(-2)
    scale_inv = scale_inv.squeeze(-1)
    if use_ue8m0:
        scale_inv = (scale_inv.view(torch.int32) >> 23).to(torch.uint8).contiguous().view(torch.int32)
    return q, scale_inv


def fp8_values(q: Tensor, scales: Tensor) -> Tensor:
    """f32 [..., H] from float8 [..., H] and scales f32 [..., H/128] or int32 [..., H/512] of any strides."""
    if scales.dtype == torch.int32:
        scales = (scales.contiguous().view(torch.uint8).int() << 23).view(torch.float32)
    blocks = torch.unflatten(q.float(), -1, (-1, BLOCK))
    return (blocks * scales.unsqueeze(-1)).flatten(-2)


def dequantise(q: Tensor, scales: Tensor) -> Tensor:
    """The same, rounded to bf16."""
    return fp8_values(q, scales).bfloat16()


def column_major(scales: Tensor) -> Tensor:
    """The same values [L, P, S] with the low-latency scales' strides (P * S, 1, P): stored as [L, S, P]."""
    return scales.transpose(-1, -2).contiguous().transpose(-1, -2)


def cast_nvfp4(x: Tensor, global_scale: Tensor | float) -> tuple[Tensor, Tensor]:
    """Quantise to e2m1 with an e4m3 scale per 16 channels, to the bit as the low-latency kernels must.

    Per block, g being the global scale and every step rounded to float32: scale = e4m3(g * (max |x| * float32(1 / 6))),
    at most 448; q = e2m1(x * (1 / (scale * (1 / g)))), nearest with ties to even, at most 6, and 0 where scale is 0.
    NaN does not count in the maximum and becomes 6.

    Args:
        x: bf16 or f32 [..., H], H a multiple of 16.
        global_scale: g, finite and above 0; a tensor of the shape of x without H has one for each row.

    Returns:
        uint8 [..., H/2], the first channel of a byte in its low half, and scales float8_e4m3fn [..., H/16].

    Raises:
        InvalidArgument: H is not a multiple of 16.
    """
    if x.shape[-1] % NVFP4_BLOCK:
        refuse("hidden", x.shape[-1], f"a multiple of {NVFP4_BLOCK}")
    blocks = torch.unflatten(x.float(), -1, (-1, NVFP4_BLOCK))
    amax = blocks.abs().nan_to_num(0, posinf=torch.inf).amax(-1, keepdim=True)
    g, one = _global_scale(global_scale, blocks).expand_as(amax), torch.ones_like(amax)
    scale = (g * (amax * torch.full_like(amax, 1.0 / E2M1[-1]))).clamp_max(FP8_MAX).to(torch.float8_e4m3fn)
    stored = scale.float()
    multiplier = torch.where(stored == 0, 0.0, one / (stored * (one / g)))
    value = blocks * multiplier
    # Half-way to the next magnitude goes to the even code, which is the upper one of an odd code only.
    borders = [(low + high) / 2 for low, high in zip(E2M1, E2M1[1:], strict=False)]
    above = [value.abs() > b if code % 2 == 0 else value.abs() >= b for code, b in enumerate(borders)]
    code = torch.stack(above).sum(0).where(~value.isnan(), 7)
    code = code + 8 * (value.signbit() & ~value.isnan())
    pairs = torch.unflatten(code.flatten(-2), -1, (-1, 2)).to(torch.uint8)
    return pairs[..., 0] | pairs[..., 1] << 4, scale.squeeze(-1)


def _global_scale(given: Tensor | float, blocks: Tensor) -> Tensor:
    """One for all blocks, or f32 [..., 1, 1] where `given` has one for each row."""
    g = torch.as_tensor(given, dtype=torch.float32)
    return g[..., None, None] if g.dim() and g.shape == blocks.shape[:-2] else g.flatten()[0]


def nvfp4_values(q: Tensor, scales: Tensor, global_scale: Tensor | float) -> Tensor:
    """f32 [..., H] from uint8 [..., H/2] and e4m3 scales [..., H/16] (see unswizzle_nvfp4); g as cast_nvfp4's."""
    codes = torch.stack([q & 15, q >> 4], -1).flatten(-2).long()
    values = torch.tensor([*E2M1, *(-v for v in E2M1)])[codes]
    blocks = torch.unflatten(values, -1, (-1, NVFP4_BLOCK))
    g = _global_scale(global_scale, blocks)
    return (blocks * (scales.float().unsqueeze(-1) * (torch.ones_like(g) / g))).flatten(-2)


def dequantise_nvfp4(q: Tensor, scales: Tensor, global_scale: Tensor | float) -> Tensor:
    """The same, rounded to bf16."""
    return nvfp4_values(q, scales, global_scale).bfloat16()


def nvfp4_row_scale(x: Tensor) -> Tensor:
    """f32 [...]: the g of each row of bf16 [..., H] in a combine: float32(2688 / max |x|), at most 2688 * 2**100; NaN
    where a row holds an infinity or NaN, whose values all become NaN."""
    amax = x.float().abs().amax(-1)
    return torch.where(
        amax.isfinite(), torch.full_like(amax, FP8_MAX * E2M1[-1]) / amax.clamp_min(2.0**-100), torch.nan
    )


def swizzle_nvfp4(scales: Tensor) -> Tensor:
    """Scales [L, P, S], S a multiple of 4, as tensor cores read them: [32, 4, ceil(P / 128), 4, S / 4, L], stored as
    [L, ceil(P / 128), S / 4, 32, 4, 4]: row 128 t + 32 j + i, scale 4 w + s is at [i, j, t, s, w]. Padding is 0."""
    local, rows, count = scales.shape
    raw = torch.nn.functional.pad(scales.view(torch.uint8), (0, 0, 0, -rows % 128))
    tiled = raw.view(local, -1, 4, 32, count // 4, 4).permute(0, 1, 4, 3, 2, 5).contiguous()
    return tiled.view(scales.dtype).permute(3, 4, 1, 5, 2, 0)


def unswizzle_nvfp4(scales: Tensor, rows: int) -> Tensor:
    """[L, P, S] of swizzle_nvfp4's form, P = `rows`."""
    raw = scales.view(torch.uint8).permute(5, 2, 1, 0, 4, 3).flatten(4).flatten(1, 3)
    return raw[:, :rows].contiguous().view(scales.dtype)


@dataclass(frozen=True, eq=False)
class LogfmtRows:
    """Rows in logfmt-10. A unit is 1,024 channels if H is a multiple of that, else 512, and is sent whole either way.

    Attributes: `plain` bf16 [T, H], sent where a unit is not encoded; `code` int16 [T, H], 0 to 511; `negative` bool
    [T, H]; `amin`, `amax` bf16 [T, H/128], smallest and largest magnitude; `encoded` bool [T, H/unit].
    """

    plain: Tensor
    code: Tensor
    negative: Tensor
    amin: Tensor
    amax: Tensor
    encoded: Tensor

    @property
    def wire_bytes(self) -> Tensor:
        """int64 [T]: two bf16 per 128 channels, then 10 or 16 bits per channel of each unit."""
        hidden, units = self.plain.shape[-1], self.encoded.shape[-1]
        bits = torch.where(self.encoded, 10, 16).sum(-1) * (hidden // units)
        return hidden // BLOCK * 4 + bits // 8


def logfmt_encode(x: Tensor) -> LogfmtRows:
    """Encode bf16 [T, H], H a multiple of 512, by exact logarithms (devices approximate: allow one code of difference).

    Per 128 channels, with logs to base 2: lo = max(log amin, log amax - 32), step = (log amax - lo) / 510, code =
    floor(max(0, (log |x| - lo) / step + 2 - log((1 + 2**step) / 2) / step)), which rounds to the nearest value, not
    the nearest logarithm. A unit is encoded when each of its blocks has log amax < 0 and lo < log amax.

    Raises:
        InvalidArgument: H is not a multiple of 512.
    """
    hidden = x.shape[-1]
    if hidden % 512:
        refuse("hidden", hidden, "a multiple of 512 with logfmt")
    magnitude = torch.unflatten(x.abs(), -1, (-1, BLOCK))
    amin, amax = magnitude.amin(-1), magnitude.amax(-1)
    low, high, step = _logfmt_range(amin, amax)
    unit_blocks = (1024 if hidden % 1024 == 0 else 512) // BLOCK
    encoded = torch.unflatten((high < 0) & (low < high), -1, (-1, unit_blocks)).all(-1)
    rounding = 2 - torch.log2((1 + torch.exp2(step)) / 2) / step
    position = (torch.log2(magnitude.double()) - low.unsqueeze(-1)) / step.unsqueeze(-1) + rounding.unsqueeze(-1)
    # Blocks that are not encoded may hold NaN here (0 / 0); their codes are never read.
    code = position.clamp(0, LOGFMT_CODES - 1).nan_to_num(0).floor().short().flatten(-2)
    return LogfmtRows(x, code, x.signbit(), amin, amax, encoded)


def logfmt_decode(rows: LogfmtRows) -> Tensor:
    """f32 [T, H]: 0 for code 0, else +-2**((code - 1) * step + lo); the plain value in units that are not encoded."""
    low, _, step = _logfmt_range(rows.amin, rows.amax)
    code = torch.unflatten(rows.code, -1, (-1, BLOCK))
    value = torch.exp2((code - 1) * step.unsqueeze(-1) + low.unsqueeze(-1))
    value = torch.where(code == 0, 0.0, value).flatten(-2)
    value = torch.where(rows.negative, -value, value).float()
    unit = rows.plain.shape[-1] // rows.encoded.shape[-1]
    return torch.where(rows.encoded.repeat_interleave(unit, -1), value, rows.plain.float())


def cast_mxfp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise to float8 with an exponent per 32 channels (OCP MXFP8), to the bit as the low-latency kernels must.

    Per block: scale_inv = 2**e is the least power of two with e >= -126 that is not below max |x| * float32(1 / 448),
    so that nothing saturates; q = e4m3(x * 2**-e). NaN does not count in the maximum and stays NaN; a block that holds
    an infinity becomes NaN.

    Args:
        x: bf16 or f32 [..., H], H a multiple of 32.

    Returns:
        q float8_e4m3fn [..., H], and e + 127 as uint8 [..., H/32]; 255 stands for NaN.

    Raises:
        InvalidArgument: H is not a multiple of 32.
    """
    if x.shape[-1] % MXFP8_BLOCK:
        refuse("hidden", x.shape[-1], f"a multiple of {MXFP8_BLOCK}")
    blocks = torch.unflatten(x.float(), -1, (-1, MXFP8_BLOCK))
    amax = blocks.abs().nan_to_num(0, posinf=torch.inf).amax(-1, keepdim=True)
    bits = (amax * torch.full_like(amax, 1.0 / FP8_MAX)).view(torch.int32)
    exponent = ((bits >> 23) + ((bits & 0x7FFFFF) != 0).int()).clamp_min(1)
    scale = torch.where(exponent == 255, 0.0, ((254 - exponent) << 23).view(torch.float32))
    return (blocks * scale).to(torch.float8_e4m3fn).flatten(-2), exponent.squeeze(-1).to(torch.uint8)


def mxfp8_values(q: Tensor, exponents: Tensor) -> Tensor:
    """f32 [..., H] from float8 [..., H] and uint8 [..., H/32]."""
    blocks = torch.unflatten(q.float(), -1, (-1, MXFP8_BLOCK))
    return (blocks * (exponents.int() << 23).view(torch.float32).unsqueeze(-1)).flatten(-2)


_ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "use_logfmt": lambda rows: logfmt_decode(logfmt_encode(rows)),
    "use_fp8": lambda rows: fp8_values(*cast_fp8(rows)),
    "use_mxfp8": lambda rows: mxfp8_values(*cast_mxfp8(rows)),
    "use_nvfp4": lambda rows: _nvfp4_rows(rows, nvfp4_row_scale(rows)),
}


def _nvfp4_rows(rows: Tensor, scale: Tensor) -> Tensor:
    return nvfp4_values(*cast_nvfp4(rows, scale.nan_to_num(1.0)), scale)


def as_received(rows: Tensor, **use: bool) -> Tensor:
    """f32 [..., H]: what bf16 rows of a low-latency combine are when they have travelled.

    Args:
        use: at most one True of use_logfmt, use_fp8, use_mxfp8, use_nvfp4, as Buffer.low_latency_combine's.

    Raises:
        InvalidArgument: several are True, or another name.
    """
    wanted = [name for name, asked in use.items() if asked or name not in _ROWS]
    if len(wanted) > 1 or not _ROWS.keys() >= set(wanted):
        refuse("use", sorted(wanted), f"one of {', '.join(_ROWS)}")
    return _ROWS[wanted[0]](rows) if wanted else rows.float()


def _logfmt_range(amin: Tensor, amax: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    high = torch.log2(amax.double())
    low = torch.maximum(torch.log2(amin.double()), high - LOGFMT_MAX_OCTAVES)
    return low, high, (high - low) / (LOGFMT_CODES - 2)


def fused_multiply_add(value: Tensor, weight: Tensor, acc: Tensor) -> Tensor:
    """f32 value * weight + acc with one rounding, as a device's fused multiply-add; f32 or bf16 inputs of one shape."""
    product = value.double() * weight.double()  # exact: 24 + 24 bits fit in 53
    addend = acc.double()
    total = product + addend
    # The sum may not fit in 53 bits, and rounding twice can differ from once. Rounding to odd in between cannot: where
    # the sum was inexact (Knuth's two-sum gives the error) and its last bit is even, step towards the lost part.
    back = total - product
    error = (product - (total - back)) + (addend - back)
    step = error.isfinite() & (error != 0) & ((total.view(torch.int64) & 1) == 0)
    towards = torch.where(error > 0, torch.inf, -torch.inf).double()
    return torch.where(step, torch.nextafter(total, towards), total).float()


def calc_diff(x: Tensor, y: Tensor) -> float:
    """1 - 2 sum(x y) / sum(x x + y y) of x + 1 and y + 1 in float64: 0.0 for equal tensors, and for empty ones."""
    a, b = x.double() + 1, y.double() + 1
    return 0.0 if a.numel() == 0 else float(1 - 2 * (a * b).sum() / (a * a + b * b).sum())


def hash_tensor(tensor: Tensor) -> int:
    """The sum of the bytes read as int32 (zero bytes added to fill the last): equal for rows in any order."""
    raw = tensor.contiguous().flatten().view(torch.uint8)
    return int(torch.nn.functional.pad(raw, (0, -raw.numel() % 4)).view(torch.int32).sum())
