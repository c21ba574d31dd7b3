"""How long the calls of a rank took, as counts in buckets: in a memfd, which whoever looks at the job maps.

A call costs two additions to words of memory, without a lock: a Buffer is used by one thread at a time. Readers may see
a call's time before its count; both only grow.
"""

from __future__ import annotations

from uccl_ep import _native

CALLS = (
    "dispatch",
    "combine",
    "low_latency_dispatch",
    "low_latency_dispatch (receive)",
    "low_latency_combine",
    "low_latency_combine (receive)",
)
"""What is counted, by the names that recorder/calls.py gives; a row of the table each."""

FIRST_NS_BITS = 13
"""The first bucket ends at 2 to this power, 8.2 us; each further one at twice the one before."""
BUCKETS = 24
"""The last but one ends at 34 s; the last has all that is longer."""
SUM_NS, ERRORS = BUCKETS, BUCKETS + 1
"""Words of a row behind its buckets: nanoseconds of all that returned; calls that raised, which no bucket has."""
WORDS = BUCKETS + 2
BYTES = 8 * WORDS * len(CALLS)
_ROWS = {name: WORDS * row for row, name in enumerate(CALLS)}


def upper_bounds_s() -> list[float]:
    """Where each bucket ends, in seconds; the last is infinite."""
    return [(1 << (FIRST_NS_BITS + i)) / 1e9 for i in range(BUCKETS - 1)] + [float("inf")]


class Durations:
    """The table of one rank.

    Attributes:
        segment: uint64 [CALLS, WORDS], zeros at first.

    Raises:
        OSError: the system gives no memory, or no descriptor.
    """

    def __init__(self, rank: int) -> None:
        self.segment = _native.Segment.create(f"uccl-ep-{rank}-durations", BYTES)
        self._words = self.segment.numpy().data[:BYTES].cast("Q")  # an array takes twice as long for one word

    def add(self, call: str, nanoseconds: int, failed: bool = False) -> None:
        """A call has ended; others than CALLS are not counted."""
        if call not in _ROWS:
            return
        row = _ROWS[call]
        if failed:
            self._words[row + ERRORS] += 1
            return
        # Up to and with its end, as Prometheus counts: exactly 2**13 ns are of the first bucket.
        bucket = ((nanoseconds - 1) >> FIRST_NS_BITS).bit_length() if nanoseconds > 0 else 0
        self._words[row + (bucket if bucket < BUCKETS else BUCKETS - 1)] += 1
        self._words[row + SUM_NS] += nanoseconds
