"""Events and immediates are read as proxy/diag and proxy/wire write them."""

from __future__ import annotations

import struct

import pytest

from tests.uccl_ep.recorder.records import word
from uccl_ep import _native
from uccl_ep._native import EventKind
from uccl_ep.recorder.events import ARRIVE, CREDIT, DTYPE, EXPECT, ROUND, SEQUENCE, decode, immediate, words_of


def test_recorder_events_are_as_large_as_the_native_ones() -> None:
    assert DTYPE.itemsize == _native.EVENT_BYTES


def test_recorder_events_decode_whole_events_only() -> None:
    data = struct.pack("<QIIQQ", 11, 5, 3, 2**63, 7) * 3
    events = decode(data + b"half")
    assert len(events) == 3 and events.tolist() == [(11, EventKind.PUBLISHED, 3, 2**63, 7)] * 3
    assert len(decode(b"")) == 0


@pytest.mark.parametrize(
    "kind, key, text",
    [
        (ARRIVE, 17, "rows of dispatch 17"),
        (EXPECT, 1 << 14 | 16383, "announcement of combine 16383"),
        (EXPECT, 2 << 14 | 1, "announcement of counts 1"),
        (ARRIVE, 4 << 14 | 2, "rows of weights 2"),
        (EXPECT, 5 << 14 | 3, "announcement of sums 3"),
        (ARRIVE, 7 << 14, "rows of phase 7 0"),
        (SEQUENCE, 1 << 16 | 3 << 10 | 9, "combine stream 3, chunk 9"),
        (CREDIT, 5 << 10 | 1023, "credit of dispatch stream 5, chunk 1023"),
        (ROUND, 4, "barrier 4"),
        (7, 4, "message of kind 7"),
    ],
)
def test_recorder_events_immediates_in_words(kind: int, key: int, text: str) -> None:
    made = word(kind, 4095, key)
    assert immediate(made) == (kind, 4095, key)
    assert words_of(made) == text
