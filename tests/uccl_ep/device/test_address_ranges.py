"""Free ranges: taken lowest first, merged with their neighbours, never handed out twice."""

from __future__ import annotations

import random

from uccl_ep.device.address_ranges import AddressRanges


def test_ranges_are_taken_from_the_bottom_and_given_back() -> None:
    ranges = AddressRanges(100)
    assert [ranges.take(40), ranges.take(40), ranges.take(40)] == [0, 40, None]
    assert ranges.free_bytes == 20
    ranges.give_back(0, 40)
    assert ranges.take(30) == 0 and ranges.take(20) == 80 and ranges.take(10) == 30
    assert ranges.free_bytes == 0 and ranges.take(1) is None


def test_neighbours_are_merged_in_any_order() -> None:
    for order in ([0, 1, 2], [2, 1, 0], [0, 2, 1], [1, 0, 2]):
        ranges = AddressRanges(90)
        for _ in range(3):
            ranges.take(30)
        for part in order:
            ranges.give_back(30 * part, 30)
        assert ranges.take(90) == 0


def test_without_a_span_nothing_is_free() -> None:
    assert AddressRanges(0).take(1) is None


def test_ranges_never_overlap() -> None:
    ranges, taken, draw = AddressRanges(1000), {}, random.Random(5)
    for _ in range(5000):
        size = draw.randrange(1, 90)
        begin = ranges.take(size) if draw.random() < 0.55 else None
        if begin is not None:
            assert begin + size <= 1000
            assert all(end <= begin or begin + size <= first for first, end in taken.items())
            taken[begin] = begin + size
        elif taken:
            first = draw.choice(list(taken))
            ranges.give_back(first, taken.pop(first) - first)
        assert ranges.free_bytes == 1000 - sum(end - first for first, end in taken.items())
