"""How fast an exchange inside one machine could be: the bytes that must be read and written, at its own memcpy speed.

Counted over all ranks, since they share the memory. A dispatch must read each token's row once and write each row of
its output once; a combine must read each row that the experts returned and write each token's row once. A memcpy of n
bytes reads n and writes n, so the limit is (read + written) / 2 over the bytes a second that all ranks copy when they
copy at once. Nothing else is counted: no routing, no weights, no copy through a socket, no page that the system must
zero; so no implementation can reach it.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import time

import torch

from uccl_ep.tools.bench.inputs import Inputs, num_visits
from uccl_ep.tools.bench.options import BenchOptions

_COPIES = 3
COPY_BYTES = 32 << 20
"""Of one timed copy: more than any core's cache."""


def output_rows(options: BenchOptions, inputs: Inputs) -> int:
    """Rows that this rank's tokens become at the experts: one a (token, rank), in low latency one a (token, k)."""
    if options.mode == "low-latency":
        return int(inputs.ids.numel())
    return int(num_visits(options, inputs).sum())


def moved_bytes(options: BenchOptions, num_rows: float) -> float:
    """Bytes read plus bytes written by all ranks in a dispatch, and as many in a combine.

    Args:
        options: the shapes.
        num_rows: output_rows of all ranks together.
    """
    return (num_rows + options.ranks * options.tokens) * options.row_bytes


def limit_seconds(options: BenchOptions, num_rows: float, copied_per_s: float) -> float:
    """Seconds of a dispatch (or of a combine) that only moves what must be moved.

    Args:
        options: the shapes.
        num_rows: output_rows of all ranks together.
        copied_per_s: bytes a second that all ranks copy together.
    """
    return moved_bytes(options, num_rows) / 2 / copied_per_s


def needed_bytes(options: BenchOptions) -> int:
    """Memory that all ranks take at most, roughly: a peer's rows sent and received, one a (token, k), which are kept;
    our rows, one a (token, rank); two sets of inputs, rings, a float32 sum; torch itself."""
    rows = options.tokens * (2 * options.topk + min(options.topk, options.ranks) * 3 // 4 + 9)
    return options.ranks * (rows * options.row_bytes + (400 << 20))


def num_copiers(options: BenchOptions) -> int:
    """Ranks that copy at once: one a core, because those that share a core would only take turns."""
    return min(options.ranks, len(os.sched_getaffinity(0)))


class CopyProbe:
    """memcpy of this rank; `num_copiers` ranks call `seconds` at the same moment."""

    def __init__(self) -> None:
        self._from = torch.ones(COPY_BYTES, dtype=torch.uint8)
        self._to = torch.zeros(COPY_BYTES, dtype=torch.uint8)  # written: its pages are there

    def seconds(self) -> float:
        """Mean time of a memcpy of COPY_BYTES, by the faster of the C library and torch."""
        means = []
        for copy in (self._by_libc, self._by_torch):
            begin = time.perf_counter()
            for _ in range(_COPIES):
                copy()
            means.append((time.perf_counter() - begin) / _COPIES)
        return min(means)

    def _by_libc(self) -> None:
        ctypes.memmove(self._to.data_ptr(), self._from.data_ptr(), COPY_BYTES)

    def _by_torch(self) -> None:
        self._to.copy_(self._from)


def copied_per_s(copies: list[list[float]]) -> float:
    """Bytes a second that the copying ranks moved together: of every round the slowest, then the median of rounds.

    Args:
        copies: CopyProbe.seconds by copying rank and round.
    """
    slowest: list[float] = [max(of) for of in zip(*copies, strict=True)]
    return len(copies) * COPY_BYTES / statistics.median(slowest)
