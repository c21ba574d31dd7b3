"""Calls are counted in the bucket that Prometheus expects them in, without one lost."""

from __future__ import annotations

import numpy as np
import pytest

from uccl_ep.recorder.calls import CallLog
from uccl_ep.recorder.durations import BUCKETS, CALLS, ERRORS, SUM_NS, WORDS, Durations, upper_bounds_s


def table(durations: Durations) -> np.ndarray:
    whole = durations.segment.numpy()[: 8 * WORDS * len(CALLS)]
    return whole.view(np.uint64).reshape(len(CALLS), WORDS)


def test_durations_bounds_grow_by_two() -> None:
    bounds = upper_bounds_s()
    assert len(bounds) == BUCKETS and bounds[0] == 8.192e-06 and bounds[-1] == float("inf")
    assert all(after == 2 * before for before, after in zip(bounds[:-2], bounds[1:-1], strict=True))


@pytest.mark.parametrize(
    "nanoseconds", [0, 1, 8192, 8193, 16384, 16385, 10**6, 34 * 10**9, 1 << 35, (1 << 35) + 1, 10**12]
)
def test_durations_are_in_the_first_bucket_that_holds_them(nanoseconds: int) -> None:
    durations = Durations(0)
    durations.add("combine", nanoseconds)
    row = table(durations)[CALLS.index("combine")]
    bucket = next(i for i, bound in enumerate(upper_bounds_s()) if nanoseconds / 1e9 <= bound)
    assert row[bucket] == 1 and row[:BUCKETS].sum() == 1 and row[SUM_NS] == nanoseconds and row[ERRORS] == 0


def test_durations_each_call_has_its_row_and_others_none() -> None:
    durations = Durations(3)
    for number, call in enumerate(CALLS):
        for _ in range(number + 1):
            durations.add(call, 5000)
    durations.add("barrier", 5000)
    durations.add("dispatch", 10**9, failed=True)
    found = table(durations)
    assert found[:, :BUCKETS].sum(axis=1).tolist() == [1, 2, 3, 4, 5, 6]
    assert found[:, ERRORS].tolist() == [1, 0, 0, 0, 0, 0] and found[0, SUM_NS] == 5000, "how long it failed is no time"


def test_durations_of_recorded_calls_and_their_hooks() -> None:
    log = CallLog()
    log.end(log.begin("low_latency_dispatch"))
    log.durations = Durations(0)
    hook = log.hook(lambda: None)
    log.end(log.begin("low_latency_combine"))
    hook()
    log.end(log.begin("low_latency_combine"), ValueError())
    found = dict(zip(CALLS, table(log.durations), strict=True))
    counts = {call: (row[:BUCKETS].sum(), row[ERRORS]) for call, row in found.items() if row.any()}
    assert counts == {"low_latency_dispatch (receive)": (1, 0), "low_latency_combine": (1, 1)}
