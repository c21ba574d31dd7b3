"""The oracle's number formats, against definitions of their own: nearest-value tables, NumPy and exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from uccl_ep.errors import InvalidArgument
from uccl_ep.reference import (
    E2M1,
    as_received,
    calc_diff,
    cast_fp8,
    cast_mxfp8,
    cast_nvfp4,
    column_major,
    dequantise,
    dequantise_nvfp4,
    fused_multiply_add,
    hash_tensor,
    logfmt_decode,
    logfmt_encode,
    mxfp8_values,
    nvfp4_row_scale,
    swizzle_nvfp4,
    unswizzle_nvfp4,
)

# Every finite non-negative float8_e4m3fn by byte: 3 bits of mantissa, bias 7, subnormals, 0x7F is NaN.
E4M3 = [(b & 7) / 512 if b < 8 else (8 + (b & 7)) * 2.0 ** ((b >> 3) - 10) for b in range(0x7F)]


def random_rows(seed: int, rows: int, hidden: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    size = torch.exp2(torch.randint(-20, 12, (rows, 1), generator=generator).float())
    return (torch.randn(rows, hidden, generator=generator) * size).bfloat16()


def nearest_e4m3(value: float) -> int:
    """Byte of |value| rounded to nearest, ties to the even byte."""
    distance = [abs(candidate - abs(value)) for candidate in E4M3]
    best = min(distance)
    bytes_at_best = [b for b, d in enumerate(distance) if d == best]
    return next((b for b in bytes_at_best if b % 2 == 0), bytes_at_best[0])


def test_fp8_by_hand() -> None:
    x = torch.zeros(1, 128)
    x[0, :5] = torch.tensor([448.0, -224.0, 0.3, 1.0625, -0.0])  # 448 maps to itself, so the scale is 1
    q, scale = cast_fp8(x.bfloat16())
    assert q.dtype == torch.float8_e4m3fn and scale.dtype == torch.float32 and scale.shape == (1, 1)
    assert q.float()[0, :4].tolist() == [448.0, -224.0, 0.3125, 1.0]  # 1.0625 is a tie: the even one
    assert q.view(torch.uint8)[0, :5].tolist() == [0x7E, 0xF6, 0x2A, 0x38, 0x80]


@pytest.mark.parametrize("seed", range(4))
def test_fp8_bytes_and_scales_are_numpys_float32(seed: int) -> None:
    x = random_rows(seed, 6, 256)
    q, scales = cast_fp8(x)
    blocks = x.float().numpy().reshape(6, 2, 128)
    for row, block in np.ndindex(6, 2):
        amax = max(np.float32(1e-4), np.abs(blocks[row, block]).max())
        assert scales[row, block].item() == amax * np.float32(1 / 448)
        scaled = blocks[row, block] * (np.float32(448) / amax)
        expected = [nearest_e4m3(float(v)) | (0x80 if np.signbit(v) else 0) for v in scaled]
        assert q.view(torch.uint8)[row, block * 128 : block * 128 + 128].tolist() == expected


def test_fp8_divides_once() -> None:
    # 448 / amax * value is a tie in float32, and 448 * (1 / amax) * value, which rounds twice, is beside it.
    amax = torch.tensor([1.078125, 1.4375, 1.5, 1.53125, 1.875, 1.96875])
    value = torch.tensor([0.80859375, 1.078125, 0.5625, 1.2578125, 1.40625, 1.1953125])
    x = torch.zeros(6, 128)
    x[:, 0], x[:, 1] = amax, value
    q, _ = cast_fp8(x.bfloat16())
    assert q.view(torch.uint8)[:, 1].tolist() == [122, 122, 114, 124, 122, 120]


def test_fp8_of_zero_and_tiny_rows_uses_the_floor() -> None:
    x = torch.zeros(2, 128)
    x[1] = 1e-6
    q, scales = cast_fp8(x)
    assert scales.flatten().tolist() == [float(np.float32(1e-4) * np.float32(1 / 448))] * 2
    assert q[0].float().abs().max() == 0
    assert q[1].float()[0].item() == 4.5  # 1e-6 * 448e4 = 4.48


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), rows=st.integers(0, 5), blocks=st.integers(1, 4), rounded=st.booleans())
def test_fp8_round_trip_error_is_half_a_step(seed: int, rows: int, blocks: int, rounded: bool) -> None:
    x = random_rows(seed, rows, blocks * 128)
    q, scales = cast_fp8(x, round_scale=rounded)
    assert q.shape == x.shape and scales.shape == (rows, blocks)
    per_channel = scales.repeat_interleave(128, 1)
    # 3 bits of mantissa: half a step is 2**-4 of the value, or 2**-10 of a scale below the normal numbers.
    error = (q.float() * per_channel - x.float()).abs()
    assert bool((error <= torch.maximum(x.float().abs() * 2**-4, per_channel * 2**-10) * 1.0001).all())
    # The largest value of a block is not wasted: it uses the top of the range.
    top = torch.where(x.float().abs() >= 1e-4, q.float().abs(), 448.0).view(rows, blocks, 128).amax(-1)
    assert bool((top >= (208 if rounded else 448)).all())


def test_round_scale_is_the_smallest_power_of_two_that_fits() -> None:
    x = torch.zeros(5, 128)
    x[:, 0] = torch.tensor([448.0, 449.0, 447.0, 224.0, 0.0])
    q, scales = cast_fp8(x, round_scale=True)
    assert scales.flatten().tolist() == [1.0, 2.0, 1.0, 0.5, 2.0**-22]  # 1e-4 / 448 = 2.2e-7 <= 2**-22 = 2.4e-7
    assert q[:, 0].float().tolist() == [448.0, 224.0, 448.0, 448.0, 0.0]


def test_ue8m0_packs_four_exponents_little_end_first() -> None:
    x = torch.zeros(1, 512)
    x[0, ::128] = torch.tensor([448.0, 896.0, 224.0, 448.0 * 2**20])
    q, packed = cast_fp8(x, round_scale=True, use_ue8m0=True)
    assert packed.dtype == torch.int32 and packed.shape == (1, 1)
    assert int(packed) & 0xFFFFFFFF == 127 | 128 << 8 | 126 << 16 | 147 << 24
    assert q[0, ::128].float().tolist() == [448.0] * 4


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), rows=st.integers(0, 4), words=st.integers(1, 3))
def test_ue8m0_dequantises_like_its_float_scales(seed: int, rows: int, words: int) -> None:
    x = random_rows(seed, rows, words * 512)
    q, scales = cast_fp8(x, round_scale=True)
    same, packed = cast_fp8(x, round_scale=True, use_ue8m0=True)
    assert torch.equal(q.view(torch.uint8), same.view(torch.uint8)) and packed.shape == (rows, words)
    assert torch.equal(dequantise(q, scales), dequantise(q, packed))
    assert torch.equal(dequantise(q, scales), (q.float() * scales.repeat_interleave(128, 1)).bfloat16())


def test_fp8_refuses() -> None:
    with pytest.raises(InvalidArgument, match="hidden must be a multiple of 128; got 100."):
        cast_fp8(torch.zeros(1, 100))
    with pytest.raises(InvalidArgument, match="hidden must be a multiple of 512.*; got 640."):
        cast_fp8(torch.zeros(1, 640), round_scale=True, use_ue8m0=True)
    with pytest.raises(InvalidArgument, match="use_ue8m0"):
        cast_fp8(torch.zeros(1, 512), use_ue8m0=True)


def test_column_major_keeps_values_and_has_the_contracts_strides() -> None:
    scales = torch.arange(2 * 6 * 4).float().view(2, 6, 4)
    turned = column_major(scales)
    assert torch.equal(turned, scales) and turned.stride() == (24, 1, 6)
    q = torch.ones(2, 6, 512).to(torch.float8_e4m3fn)
    assert torch.equal(dequantise(q, turned), dequantise(q, scales))
    packed = (torch.arange(2 * 6 * 4, dtype=torch.int32) * 0x01010101).view(2, 6, 4)
    q = torch.ones(2, 6, 2048).to(torch.float8_e4m3fn)
    assert torch.equal(dequantise(q, column_major(packed)), dequantise(q, packed))


def as_float32(exact: Fraction) -> np.float32:
    """The nearest float32, ties to even, by comparing exact distances."""
    guess = np.float32(float(exact))
    near = [guess, np.nextafter(guess, np.float32(np.inf)), np.nextafter(guess, np.float32(-np.inf))]
    return min(near, key=lambda f: (abs(Fraction(float(f)) - exact), int(f.view(np.uint32)) & 1))


normal = st.floats(
    width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False, min_value=-1e9, max_value=1e9
)


@settings(max_examples=300, deadline=None)
@given(normal.filter(lambda v: v == 0 or abs(v) > 1e-9), normal.filter(lambda v: v == 0 or abs(v) > 1e-9), normal)
def test_fma_rounds_once(value: float, weight: float, acc: float) -> None:
    got = fused_multiply_add(*(torch.tensor([v]) for v in (value, weight, acc)))
    exact = Fraction(value) * Fraction(weight) + Fraction(acc)
    assert got.dtype == torch.float32
    assert got.item() == float(as_float32(exact))


def test_fma_where_two_roundings_would_show() -> None:
    up, down = 1 + 2.0**-23, 1 - 2.0**-23
    # up + half a step - 2**-70: float64 lands on the tie, which would round up to even.
    got = fused_multiply_add(torch.tensor([up * 2.0**-24]), torch.tensor([down]), torch.tensor([up]))
    assert got.item() == up
    # An unfused multiply would lose the product's last bits.
    residue = fused_multiply_add(torch.tensor([up]), torch.tensor([up]), torch.tensor([-(1 + 2.0**-22)]))
    assert residue.item() == 2.0**-46
    extremes = fused_multiply_add(torch.tensor([3e38, torch.inf]), torch.tensor([3e38, 1.0]), torch.zeros(2))
    assert extremes.tolist() == [torch.inf, torch.inf]


def test_logfmt_by_hand() -> None:
    x = torch.full((1, 512), 0.25)
    x[0, ::128] = 0.5  # every block spans one octave: step = 1 / 510
    x[0, 3] = -0.5
    x[0, 4] = 0.353515625  # 0.25 * 2**0.49982: nearest is 2**(255/510)
    rows = logfmt_encode(x.bfloat16())
    assert rows.encoded.tolist() == [[True]]
    assert rows.code[0, :6].tolist() == [511, 1, 1, 511, 256, 1]
    assert rows.negative[0, :5].tolist() == [False, False, False, True, False]
    assert rows.wire_bytes.tolist() == [4 * 4 + 512 * 10 // 8]
    decoded = logfmt_decode(rows)[0]
    assert decoded[[0, 1, 3]].tolist() == [0.5, 0.25, -0.5]
    assert abs(decoded[4].item() - 0.25 * 2**0.5) < 1e-7


@pytest.mark.parametrize(
    ("channel", "value"),
    [(0, 1.0), (700, -1.5)],  # log amax of one block is not below 0: its whole unit is sent plain
)
def test_logfmt_unit_with_a_large_value_is_plain(channel: int, value: float) -> None:
    x = (torch.rand(3, 1536, generator=torch.Generator().manual_seed(1)) * 0.9).bfloat16()
    x[1, channel] = value
    rows = logfmt_encode(x)
    expected = [[True] * 3 for _ in range(3)]
    expected[1][channel // 512] = False
    assert rows.encoded.tolist() == expected
    assert rows.wire_bytes.tolist() == [48 + 3 * 640, 48 + 2 * 640 + 1024, 48 + 3 * 640]
    first = channel // 512 * 512
    assert torch.equal(logfmt_decode(rows)[1, first : first + 512], x[1, first : first + 512].float())


@pytest.mark.parametrize("block", [0.0, 0.125])
def test_logfmt_unit_with_a_constant_block_is_plain(block: float) -> None:
    x = (torch.rand(1, 2048, generator=torch.Generator().manual_seed(1)) * 0.9).bfloat16()
    x[0, 1152:1280] = block
    rows = logfmt_encode(x)
    assert rows.encoded.tolist() == [[True, False]]  # units of 1024
    assert rows.wire_bytes.tolist() == [64 + 1280 + 2048]
    assert torch.equal(logfmt_decode(rows)[0, 1024:], x[0, 1024:].float())


def test_logfmt_clips_at_32_octaves() -> None:
    x = torch.full((1, 512), 0.5)
    x[0, ::128] = 0.0
    x[0, 1::128] = 0.5 * 2**-40
    x[0, 2::128] = -0.5 * 2**-31
    rows = logfmt_encode(x.bfloat16())
    assert rows.encoded.item()
    decoded = logfmt_decode(rows)[0]
    assert decoded[0] == 0 and decoded[1] == 0 and decoded[3] == 0.5
    assert abs(decoded[2].item() / (-0.5 * 2**-31) - 1) < 0.023


@settings(max_examples=30, deadline=None)
@example(seed=479, rows=1, hidden=1536)  # a zero, and nothing smaller than the rest of its group
@given(seed=st.integers(0, 2**31), rows=st.integers(0, 4), hidden=st.sampled_from([512, 1024, 1536, 2560, 7168]))
def test_logfmt_error_is_half_a_step_and_signs_stay(seed: int, rows: int, hidden: int) -> None:
    x = torch.rand(rows, hidden, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    x = (x * 0.99).bfloat16()
    encoded = logfmt_encode(x)
    decoded = logfmt_decode(encoded)
    assert bool((encoded.code >= 0).all()) and bool((encoded.code <= 511).all())
    low, high = encoded.amin.double(), encoded.amax.double()
    ratio = torch.exp2(torch.log2(high / low) / 510).repeat_interleave(128, 1)  # between neighbouring values
    # Nearest in value: at most half the gap to the next one, which is (ratio - 1) of the smaller. Zeros are exact; in
    # their group the ratio may be infinite.
    most = (x.abs().double() * (ratio - 1) / 2 * 1.001).nan_to_num(0.0) + 1e-12
    assert bool(((decoded - x.float()).abs() <= most).all())
    assert torch.equal(decoded.signbit(), x.signbit())
    assert bool((encoded.wire_bytes <= hidden // 128 * 4 + 2 * hidden).all())


def test_logfmt_refuses_other_widths() -> None:
    with pytest.raises(InvalidArgument, match="hidden must be a multiple of 512 .*; got 768."):
        logfmt_encode(torch.zeros(1, 768))


def test_calc_diff() -> None:
    x = torch.tensor([0.0, 1.0])
    assert calc_diff(x, x) == 0.0
    assert calc_diff(x, torch.zeros(2)) == pytest.approx(1 - 2 * 3 / (5 + 2))  # (1, 2) against (1, 1)
    assert calc_diff(torch.zeros(0, 4), torch.zeros(0, 4)) == 0.0
    assert calc_diff(x.bfloat16(), x) == 0.0


def test_hash_tensor_ignores_order_but_not_values() -> None:
    x = torch.arange(12, dtype=torch.int32).view(3, 4)
    assert hash_tensor(x) == 66 == hash_tensor(x[[2, 0, 1]]) == hash_tensor(x.T)
    assert hash_tensor(torch.tensor([1, 0, 0, 0, 2], dtype=torch.uint8)) == 3  # filled up with zero bytes
    assert hash_tensor(torch.tensor([-1, -1], dtype=torch.int32)) == -2
    assert hash_tensor(torch.zeros(0)) == 0
    assert hash_tensor(torch.ones(2).bfloat16()) == 0x3F803F80


def nearest_e2m1(value: float) -> int:
    """Code of |value| rounded to nearest, ties to the even code, at most 6."""
    distance = [abs(candidate - abs(value)) for candidate in E2M1]
    codes = [code for code, d in enumerate(distance) if d == min(distance)]
    return next((code for code in codes if code % 2 == 0), codes[0])


def test_nvfp4_by_hand() -> None:
    x = torch.zeros(1, 16)
    x[0, :9] = torch.tensor([6.0, -3.0, 0.25, 0.75, 2.5, 3.5, 5.0, -0.25, -0.0])  # with scale 1; all but two are ties
    q, scales = cast_nvfp4(x.bfloat16(), 1.0)
    assert q.dtype == torch.uint8 and q.shape == (1, 8) and scales.dtype == torch.float8_e4m3fn
    assert scales.float().tolist() == [[1.0]]
    assert q[0].tolist() == [0xD7, 0x20, 0x64, 0x86, 0x08, 0, 0, 0]
    assert dequantise_nvfp4(q, scales, 1.0)[0, :9].tolist() == [6, -3, 0, 1, 2, 4, 4, 0, 0]


@pytest.mark.parametrize("seed", range(4))
def test_nvfp4_bytes_and_scales_are_numpys_float32(seed: int) -> None:
    x = random_rows(seed, 6, 64)
    g = np.float32([1.0, 2688.0 / float(x.abs().max()), 0.3, 7e4][seed])
    q, scales = cast_nvfp4(x, torch.tensor(g))
    codes = torch.stack([q & 15, q >> 4], -1).view(6, 4, 16)
    blocks = x.float().numpy().reshape(6, 4, 16)
    for row, block in np.ndindex(6, 4):
        amax = np.abs(blocks[row, block]).max()
        wanted = min(np.float32(448), g * (amax * np.float32(1 / 6)))
        stored = np.float32(scales[row, block].float().item())
        assert scales.view(torch.uint8)[row, block].item() == nearest_e4m3(float(wanted))
        multiplier = np.float32(1) / (stored * (np.float32(1) / g)) if stored else np.float32(0)
        expected = [nearest_e2m1(float(v)) | (8 if np.signbit(v) else 0) for v in blocks[row, block] * multiplier]
        assert codes[row, block].tolist() == expected


def test_nvfp4_of_special_values() -> None:
    x = torch.zeros(3, 16)
    x[1, :3] = torch.tensor([torch.nan, 1.0, -torch.nan])
    x[2, :3] = torch.tensor([torch.inf, -torch.inf, 1.0])
    q, scales = cast_nvfp4(x.bfloat16(), 6.0)
    assert scales.float().flatten().tolist() == [0.0, 1.0, 448.0]  # NaN does not count; infinity saturates
    assert q[:, :2].tolist() == [[0, 0], [0x77, 0x07], [0xF7, 0x00]]
    with pytest.raises(InvalidArgument, match="multiple of 16"):
        cast_nvfp4(torch.zeros(1, 24), 1.0)
    assert cast_nvfp4(torch.zeros(0, 32), 1.0)[0].shape == (0, 16)


@pytest.mark.parametrize("seed", range(3))
def test_nvfp4_rows_have_a_scale_each(seed: int) -> None:
    x = random_rows(seed, 5, 128).bfloat16()
    g = nvfp4_row_scale(x)
    together, alone = cast_nvfp4(x, g), [cast_nvfp4(x[i : i + 1], g[i]) for i in range(5)]
    assert torch.equal(together[0], torch.cat([a[0] for a in alone]))
    assert torch.equal(together[1].view(torch.uint8), torch.cat([a[1].view(torch.uint8) for a in alone]))
    values = as_received(x, use_nvfp4=True)
    assert torch.equal(values.bfloat16(), torch.cat([dequantise_nvfp4(*a, g[i]) for i, a in enumerate(alone)]))
    assert torch.equal(together[1].float().amax(-1), torch.full((5,), 448.0))  # all of e4m3's range is used


def test_nvfp4_rows_without_a_number_are_nan() -> None:
    x = torch.ones(4, 64).bfloat16()
    x[1, 5], x[2, 7], x[3] = torch.inf, torch.nan, 0.0
    values = as_received(x, use_nvfp4=True)
    assert torch.equal(values[0], torch.ones(64)) and values[1:3].isnan().all() and torch.equal(values[3], x[3].float())


def test_mxfp8_by_hand() -> None:
    x = torch.zeros(1, 5 * 32)
    x[0, 0], x[0, 1] = 448.0, -1.0  # held without an exponent
    x[0, 32] = 450.0  # half of it is 225, between 224 and 240
    x[0, 64] = 2.0**-140  # subnormal in float32, zero in e4m3 at the least scale
    x[0, 96], x[0, 97] = torch.inf, 1.0
    x[0, 128], x[0, 129] = torch.nan, 1.0
    q, exponents = cast_mxfp8(x)
    assert q.dtype == torch.float8_e4m3fn and exponents.tolist() == [[127, 128, 1, 255, 119]]
    values = mxfp8_values(q, exponents)[0]
    assert values[:2].tolist() == [448.0, -1.0] and values[32] == 448.0 and values[64] == 0
    assert values[96:128].isnan().all() and values[128].isnan() and values[129] == 1
    with pytest.raises(InvalidArgument, match="multiple of 32"):
        cast_mxfp8(torch.zeros(1, 48))
    assert cast_mxfp8(torch.zeros(0, 32))[0].shape == (0, 32)


@pytest.mark.parametrize("seed", range(4))
def test_mxfp8_is_the_least_power_of_two_that_holds_a_block(seed: int) -> None:
    x = random_rows(seed, 6, 96) * 10.0 ** (3 * seed - 5)
    q, exponents = cast_mxfp8(x)
    blocks, scales = x.float().unflatten(-1, (-1, 32)), torch.exp2(exponents.float() - 127)
    assert torch.equal(q.float().unflatten(-1, (-1, 32)), (blocks / scales[..., None]).to(torch.float8_e4m3fn).float())
    reach = blocks.abs().amax(-1) / scales
    assert (reach <= 448.0 * (1 + 1e-6)).all() and (reach > 224.0 * (1 - 1e-6)).all()


def test_rows_travel_one_way() -> None:
    rows = torch.randn(2, 512).bfloat16()
    assert torch.equal(as_received(rows), rows.float()) and torch.equal(as_received(rows, use_fp8=False), rows.float())
    for use in ({"use_fp8": True, "use_nvfp4": True}, {"use_fp4": True}, {"use_fp4": False}):
        with pytest.raises(InvalidArgument, match="one of use_logfmt, use_fp8, use_mxfp8, use_nvfp4"):
            as_received(rows, **use)


@pytest.mark.parametrize("rows", [1, 31, 128, 129, 300])
def test_nvfp4_swizzle_is_what_the_contract_says(rows: int) -> None:
    scales = torch.randint(0, 120, (2, rows, 8), generator=torch.Generator().manual_seed(rows), dtype=torch.uint8)
    swizzled = swizzle_nvfp4(scales.view(torch.float8_e4m3fn))
    tiles = -(-rows // 128)
    assert swizzled.shape == (32, 4, tiles, 4, 2, 2) and swizzled.dtype == torch.float8_e4m3fn
    assert swizzled.stride() == (16, 4, 1024, 1, 512, 1024 * tiles)
    raw = swizzled.view(torch.uint8)
    for row in {0, rows // 2, rows - 1}:
        for scale in range(8):
            at = (row % 32, row % 128 // 32, row // 128, scale % 4, scale // 4)
            assert raw[at].tolist() == scales[:, row, scale].tolist()
    assert torch.equal(unswizzle_nvfp4(swizzled, rows).view(torch.uint8), scales)
