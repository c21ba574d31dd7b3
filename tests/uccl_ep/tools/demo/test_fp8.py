"""The caller's FP8 cast: scales per 128 channels, bounded error, zeros and extremes."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from uccl_ep.tools.demo.fp8 import from_fp8, to_fp8


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 20), st.integers(1, 4), st.integers(-12, 12), st.integers(0, 1000))
def test_a_row_comes_back_within_an_eighth_of_each_value(rows: int, blocks: int, power: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = (torch.randn(rows, 128 * blocks, generator=generator) * 2.0**power).bfloat16()
    quantised, scales = to_fp8(x)
    assert quantised.dtype == torch.float8_e4m3fn and quantised.shape == x.shape
    assert scales.dtype == torch.float32 and scales.shape == (rows, blocks)
    error = (from_fp8(quantised, scales).float() - x.float()).abs()
    # e4m3 keeps 3 fraction bits (1/16 when rounded) down to 2^-6, and 2^-10 of the scale below; bf16 adds 1/256.
    bound = x.float().abs() / 14 + scales.repeat_interleave(128, 1) * 2.0**-9
    assert bool((error <= bound).all())


def test_each_block_has_a_scale_of_its_own() -> None:
    x = torch.cat([torch.full((1, 128), 448.0), torch.full((1, 128), 0.5), torch.zeros(1, 128)], 1).bfloat16()
    quantised, scales = to_fp8(x)
    assert scales[0, 0] == 1.0
    assert scales[0, 1] == torch.tensor(0.5) / 448
    assert scales[0, 2] > 0  # a block of zeros must not divide by zero
    assert quantised.float()[0, [0, 128, 256]].tolist() == [448.0, 448.0, 0.0]
    assert torch.equal(from_fp8(quantised, scales), x)
