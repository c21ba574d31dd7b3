"""Sizes: DeepEP's low-latency golden values, and byte counts as people write and read them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uccl_ep.errors import InvalidArgument
from uccl_ep.sizes import format_bytes, parse_bytes, round_up, upstream_low_latency_size_hint


@pytest.mark.parametrize(
    ("tokens", "hidden", "ranks", "experts", "size"),
    [
        (128, 7168, 8, 288, 2_146_961_792),
        (128, 7168, 8, 256, 1_908_410_496),
        (16, 5120, 8, 256, 170_395_776),
        (128, 2048, 2, 8, 17_039_744),
        (1, 2048, 2, 2, 33_664),
    ],
)
def test_low_latency_size_is_deepeps(tokens: int, hidden: int, ranks: int, experts: int, size: int) -> None:
    assert upstream_low_latency_size_hint(tokens, hidden, ranks, experts) == size
    assert upstream_low_latency_size_hint(tokens, hidden, 1, experts) == size  # ranks do not enter


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((0, 128, 1, 1), "tokens_per_rank must be .*; got 0."),
        ((1, 0, 1, 1), "hidden must be .*; got 0."),
        ((1, 192, 1, 1), "hidden must be .*of 128; got 192."),
        ((1, 128, 0, 1), "num_ranks must be .*; got 0."),
        ((1, 128, 8, 4), "num_experts must be .*num_ranks=8; got 4."),
    ],
)
def test_low_latency_size_refuses(arguments: tuple[int, int, int, int], names: str) -> None:
    with pytest.raises(InvalidArgument, match=names):
        upstream_low_latency_size_hint(*arguments)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (1024**2 - 1, "1 MiB"),
        (8 << 20, "8 MiB"),
        (2_146_961_792, "2 GiB"),
        (1 << 40, "1 TiB"),
        (3 << 60, "3072 PiB"),
        (-2048, "-2 KiB"),
    ],
)
def test_format_bytes(number: int, text: str) -> None:
    assert format_bytes(number) == text


@pytest.mark.parametrize(
    ("text", "number"),
    [("8388608", 8 << 20), ("8MiB", 8 << 20), (" 8 mb ", 8 << 20), ("1.5g", 3 << 29), ("0", 0), ("12b", 12),
     ("9007199254740993", 2**53 + 1), ("1p", 1 << 50), ("0.5k", 512)],
)  # fmt: skip
def test_parse_bytes(text: str, number: int) -> None:
    assert parse_bytes(text) == number


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1e6", "8 MiBs", "0x10", "1.5", "0.3k", "1 2"])
def test_parse_bytes_refuses(text: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^size must be .*; got {re.escape(repr(text))}\.$"):
        parse_bytes(text)


@given(st.integers(0, 1 << 55))
def test_formatted_size_reads_back_within_its_last_digit(number: int) -> None:
    text = format_bytes(number)
    mantissa, unit = text.split()
    step = 1024 ** ["B", "KiB", "MiB", "GiB", "TiB", "PiB"].index(unit) / 10
    assert float(mantissa) < 1024 or unit == "PiB"
    assert abs(float(mantissa) * step * 10 - number) <= step


@given(st.integers(0, 10**9), st.integers(1, 10**6))
def test_round_up_is_the_nearest_multiple_above(value: int, multiple: int) -> None:
    rounded = round_up(value, multiple)
    assert rounded % multiple == 0
    assert value <= rounded < value + multiple
