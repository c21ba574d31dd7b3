"""Two clocks with an offset and a drift, compared from questions of known delays."""

from __future__ import annotations

import numpy as np
import pytest

from bench.device.clocks import STAMP_BITS, Comparison, compare, latencies, percentiles


def _samples(offset: int, asking: int, answering: int, count: int = 200) -> np.ndarray:
    random = np.random.default_rng(abs(offset))
    before = np.arange(count, dtype=np.int64) * 10_000 + 10**15
    slower = random.integers(0, 5_000, count)  # some questions wait: they must not decide
    slower[::7] = 0
    seen = before + asking + slower
    return np.stack([before, seen + answering, seen + offset], axis=1)


@pytest.mark.parametrize("offset", [0, 123_456_789_012, -987_654_321_098])
def test_bench_clocks_offset_is_within_its_uncertainty(offset: int) -> None:
    for asking, answering in ((500, 500), (1500, 300)):
        found = compare(_samples(offset, asking, answering))
        assert abs(found.offset_ns - offset) <= found.uncertainty_ns <= (asking + answering) // 2 + 1
    late = compare(_samples(offset, 1500, 300))
    assert late.offset_ns >= offset, (
        "asking takes longer than answering: latencies must come out too large, not too small"
    )


def test_bench_clocks_nothing_answered_is_an_error() -> None:
    with pytest.raises(ValueError, match="no question was answered"):
        compare(np.zeros((0, 3), dtype=np.int64))


@pytest.mark.parametrize("offset", [77, (1 << STAMP_BITS) * 3 - 5, -(10**14)])
def test_bench_clocks_latency_takes_out_drift_and_wrap(offset: int) -> None:
    start, end, ppm = 10**15, 10**15 + 2 * 10**9, 40e-6
    before = Comparison(start, offset, 1)
    after = Comparison(end, offset + round((end - start) * ppm), 1)
    sent = np.linspace(start, end - 10_000, 500).astype(np.int64)
    due = (np.arange(500) % 9) * 1000 - 1000  # from -1 us, which only the comparison's error can give
    stamps = (sent + offset + np.rint((sent - start) * ppm).astype(np.int64)) % (1 << STAMP_BITS)
    seen = latencies(np.stack([sent + due, stamps], axis=1), before, after)
    assert np.abs(seen - due).max() <= 2


def test_bench_clocks_percentiles_are_measured_values() -> None:
    found = percentiles(np.arange(1000, 0, -1))
    assert (found["p50"], found["p99"], found["p999"], found["max"]) == (501.0, 991.0, 1000.0, 1000.0)
