"""Native enums as Python sees them: values without a gap, and words of shared memory where Python looks for them."""

from __future__ import annotations

from enum import IntEnum

import pytest

from uccl_ep import _native

ENUMS = [value for value in vars(_native).values() if isinstance(value, type) and issubclass(value, IntEnum)]


@pytest.mark.parametrize("enum", ENUMS, ids=lambda enum: enum.__name__)
def test_enums_values_have_no_gap(enum: type[IntEnum]) -> None:
    values = [int(value) for value in enum]
    assert values == list(range(values[0], values[0] + len(values))) and values[0] in (0, 1)


def test_enums_are_those_of_shared_memory_and_records() -> None:
    names = {enum.__name__ for enum in ENUMS}
    assert names >= {"FaultKind", "WaitPhase", "DetailKind", "MismatchField", "Phase", "EventKind"}
    assert _native.FaultKind.NONE == 0 and _native.WaitPhase.NONE == 0  # memory that nobody has written
    assert _native.ImmediateKind.ARRIVE == 1  # so is an immediate of zeros none


def test_enums_words_of_a_ring_lie_on_lines_of_their_own() -> None:
    offsets = (_native.RING_TAIL_OFFSET, _native.RING_DONE_OFFSET, _native.RING_HEAD_OFFSET)
    assert len({offset // 64 for offset in offsets}) == 3
