"""Byte counts for people, and the buffer size that DeepEP itself would ask for in low-latency mode.

Pure arithmetic: no torch, no device. What this package really allocates is said elsewhere (memory_bill).
"""

from __future__ import annotations

import re

from uccl_ep.errors import refuse

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SIZE = re.compile(r"\s*(\d{1,40}(?:\.\d{1,40})?)\s*([kmgtp]?)(?:i?b)?\s*", re.IGNORECASE | re.ASCII)


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` (at least 1) that is not below `value`."""
    return -(-value // multiple) * multiple


def upstream_low_latency_size_hint(
    num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
) -> int:
    """Bytes that DeepEP V1's `Buffer.get_low_latency_rdma_size_hint` returns for the same arguments.

    Formula: with M tokens, E experts and s = H / 128 scales, a dispatch message is d = 16 + max(2H, H + 4s) bytes and
    a combine message c = 4s + 2H. Twice (ping-pong): send max(M d, E M c), receive E M max(d, c), signals 4E rounded
    up to 128. The result is rounded to 128 by adding 128 first, so an aligned total still grows by 128, as upstream's.

    Args:
        num_max_dispatch_tokens_per_rank: M, tokens that one rank sends at most in one call.
        hidden: H, channels of one token, a multiple of 128.
        num_ranks: not part of the formula; checked against the expert count because a caller who swaps the two
            arguments would otherwise get a plausible number.
        num_experts: E, over all ranks.

    Raises:
        InvalidArgument: a count below 1, `hidden` not a multiple of 128, or `num_experts` not a multiple of
            `num_ranks`.
    """
    for name, value in (
        ("num_max_dispatch_tokens_per_rank", num_max_dispatch_tokens_per_rank),
        ("hidden", hidden),
        ("num_ranks", num_ranks),
        ("num_experts", num_experts),
    ):
        if value < 1:
            refuse(name, value, "1 or more")
    if hidden % 128:
        refuse("hidden", hidden, "a multiple of 128", "Scales are per 128 channels.")
    if num_experts % num_ranks:
        refuse("num_experts", num_experts, f"a multiple of num_ranks={num_ranks}", "Pad the expert count.")
    tokens, experts, scale_bytes = num_max_dispatch_tokens_per_rank, num_experts, hidden // 128 * 4
    dispatch_message = 16 + max(2 * hidden, hidden + scale_bytes)
    combine_message = scale_bytes + 2 * hidden
    send = max(tokens * dispatch_message, experts * tokens * combine_message)
    receive = experts * tokens * max(dispatch_message, combine_message)
    total = 2 * (send + receive + round_up(4 * experts, 128))
    return (total + 128) // 128 * 128


def format_bytes(num_bytes: int) -> str:
    """A byte count in binary units with at most one decimal: 1536 -> "1.5 KiB", 2048 -> "2 KiB", 0 -> "0 B"."""
    sign, rest = ("-" if num_bytes < 0 else ""), abs(num_bytes)
    power = 0
    # Not `rest < 1024 ** (power + 1)`: 1,048,575 bytes would print as "1024 KiB".
    while power + 1 < len(_UNITS) and round(rest / 1024**power, 1) >= 1024:
        power += 1
    number = f"{rest / 1024**power:.1f}".removesuffix(".0")
    return f"{sign}{number} {_UNITS[power]}"


def parse_bytes(text: str) -> int:
    """Bytes from "8388608", "8MiB", "8 mb", "1.5g"; every unit is a power of 1024.

    Raises:
        InvalidArgument: not a size, or not a whole number of bytes.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        refuse("size", text, "a number of bytes, with or without a unit: 8388608, 8MiB, 1.5g")
    digits, unit = str(match[1]), str(match[2]).lower()
    factor = 1 << 10 * " kmgtp".index(unit or " ")
    whole, _, fraction = digits.partition(".")
    # Whole-number arithmetic: a float would lose bytes above 2**53.
    divisor: int = 10 ** len(fraction)
    scaled, rest = divmod(int(whole + fraction) * factor, divisor)
    if rest:
        refuse("size", text, "a whole number of bytes")
    return scaled
