"""Two clocks compared: what the other one showed at a time of this host, from questions and answers in the same run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]
STAMP_BITS = 36


@dataclass(frozen=True)
class Comparison:
    """At host time `at_ns` the other clock was `offset_ns` ahead, give or take `uncertainty_ns`.

    The bound is half of the fastest question's round trip. Within it the offset errs upwards where asking takes longer
    than answering (a GPU polls over PCIe, but its answer is one posted write), and a latency that is computed with it
    then errs upwards too.
    """

    at_ns: int
    offset_ns: int
    uncertainty_ns: int


def compare(samples: Longs) -> Comparison:
    """From [n, 3] (host ns before, after, the other's ns): the fastest tenth of the questions decides.

    Raises:
        ValueError: no sample.
    """
    if samples.shape[0] == 0:
        raise ValueError("no question was answered: the other clock is not running")
    took = samples[:, 1] - samples[:, 0]
    best = np.argsort(took, kind="stable")[: max(1, samples.shape[0] // 10)]
    middle = samples[best, 0] + took[best] // 2
    offset = int(np.median(samples[best, 2] - middle))
    return Comparison(int(np.median(middle)), offset, int(took[best[0]]) // 2 + 1)


def latencies(samples: Longs, before: Comparison, after: Comparison) -> Longs:
    """[n] ns from stamp to arrival, of [n, 2] (host ns of the arrival, low 36 bits of the other clock's stamp).

    The offset is interpolated between the two comparisons, which takes out the clocks' drift.
    """
    arrived, stamp = samples[:, 0], samples[:, 1]
    span = max(1, after.at_ns - before.at_ns)
    drift = (arrived - before.at_ns).astype(np.float64) * (after.offset_ns - before.offset_ns) / span
    other = arrived + before.offset_ns + np.rint(drift).astype(np.int64)
    wrap = 1 << STAMP_BITS
    late = (other - stamp) % wrap
    return np.where(late >= wrap // 2, late - wrap, late)  # a little below zero is the comparison's uncertainty


def percentiles(values: Longs | npt.NDArray[np.float64]) -> dict[str, float]:
    """p50, p90, p99, p99.9 and the largest, each a value that was measured (nearest rank)."""
    ordered = np.sort(values)
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
    found = {name: float(ordered[min(len(ordered) - 1, int(share * len(ordered)))]) for name, share in shares.items()}
    return {**found, "max": float(ordered[-1])}
