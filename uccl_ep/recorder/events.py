"""The proxy's events (proxy/diag/event_ring.h) and the immediates in them (proxy/wire/immediate.h), as Python reads
them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from uccl_ep._native import ImmediateKind, PartReason, Phase

DTYPE = np.dtype([("ns", "<u8"), ("kind", "<u4"), ("peer", "<u4"), ("key", "<u8"), ("value", "<u8")])
NOBODY = 0xFFFFFFFF
Events = npt.NDArray[np.void]


ENDED, CONNECTION, GOODBYE, LEFT_OUT = PartReason
ARRIVE, EXPECT, SEQUENCE, CREDIT, ROUND = ImmediateKind
_PHASES: dict[int, str] = {
    Phase.DISPATCH: "dispatch",
    Phase.COMBINE: "combine",
    Phase.COUNTS: "counts",
    Phase.SPARE: "what was read",
    Phase.WEIGHTS: "weights",
    Phase.REDUCED: "sums",
    Phase.IDENTITY: "identities",
}
EPOCH_BITS = 14  # of the key of an arrival or announcement; the phase is above them
STREAM = 1 << 32
"""In the key of a PUBLISHED event: it is a stream's tail, and the low bits are the stream's key."""


def decode(data: bytes) -> Events:
    """Events in the order in which they were recorded; half an event at the end is dropped."""
    return np.frombuffer(data[: len(data) // DTYPE.itemsize * DTYPE.itemsize], DTYPE)


def immediate(word: int) -> tuple[int, int, int]:
    """(kind, source rank, key) of 32 bits."""
    return word >> 29 & 7, word >> 17 & 0xFFF, word & 0x1FFFF


def phase_words(phase: int) -> str:
    """The name of a Phase."""
    return _PHASES.get(phase, f"phase {phase}")


def words_of_key(kind: int, key: int) -> str:
    """What an immediate is about, such as "dispatch 17" or "combine stream 3, chunk 9" (low bits of the numbers)."""
    if kind in (ARRIVE, EXPECT):
        return f"{phase_words(key >> EPOCH_BITS & 7)} {key & (1 << EPOCH_BITS) - 1}"
    if kind in (SEQUENCE, CREDIT):
        return f"{phase_words(key >> 16 & 1)} stream {key >> 10 & 63}, chunk {key & 1023}"
    return f"barrier {key & 0xFFFF}" if kind == ROUND else f"message of kind {kind}"


def words_of(word: int) -> str:
    """An immediate in words: what kind of message, and of what."""
    kind, _, key = immediate(word)
    texts: dict[int, str] = {ARRIVE: "rows of ", EXPECT: "announcement of ", CREDIT: "credit of "}
    what = texts.get(kind, "")
    return what + words_of_key(kind, key)
