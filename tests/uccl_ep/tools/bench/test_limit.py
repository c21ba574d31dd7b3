"""The memcpy limit: bytes counted by hand, seconds from them, and the probe."""

from __future__ import annotations

import pytest

from uccl_ep.tools.bench.inputs import make_inputs
from uccl_ep.tools.bench.limit import (
    COPY_BYTES,
    CopyProbe,
    copied_per_s,
    limit_seconds,
    moved_bytes,
    needed_bytes,
    num_copiers,
    output_rows,
)
from uccl_ep.tools.bench.options import BenchOptions


def test_bench_limit_counts_rows_of_the_output() -> None:
    options = BenchOptions(ranks=4, tokens=11, hidden=128, topk=3, experts=8)
    inputs = make_inputs(options, 0)
    assert output_rows(options, inputs) == sum(len({e // 2 for e in row}) for row in inputs.ids.tolist())
    low_latency = BenchOptions(mode="low-latency", ranks=4, tokens=11, hidden=128, topk=3, experts=8)
    assert output_rows(low_latency, inputs) == 33


def test_bench_limit_is_half_of_what_is_read_and_written() -> None:
    options = BenchOptions(ranks=2, tokens=10, hidden=512)
    assert moved_bytes(options, 30.0) == (30 + 2 * 10) * 1024
    assert limit_seconds(options, 30.0, 25600.0) == pytest.approx(1.0)


def test_bench_copies_are_of_the_slowest_and_the_median_round() -> None:
    assert copied_per_s([[1.0, 2.0, 9.0], [4.0, 1.0, 1.0]]) == pytest.approx(2 * COPY_BYTES / 4.0)


def test_bench_copy_probe_copies() -> None:
    probe = CopyProbe()
    assert probe.seconds() > 0.0
    assert probe._to[-1] == 1 and probe._to[0] == 1


def test_bench_only_one_rank_a_core_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2})
    assert num_copiers(BenchOptions(ranks=8)) == 3 and num_copiers(BenchOptions(ranks=2)) == 2


def test_bench_needed_memory_covers_the_large_tensors() -> None:
    options = BenchOptions(ranks=8, ranks_per_node=8).shaped("v3")
    rows = options.tokens * options.row_bytes
    assert 8 * 16 * rows < needed_bytes(options) < 18.5e9
    assert needed_bytes(BenchOptions()) < 4e9
