"""Notices between ranks of a node: read back whole, or not at all."""

from __future__ import annotations

import pytest

from uccl_ep.gpu.notices import PAGE_BYTES, Notices, heard, tell


@pytest.mark.parametrize("what", [b"", b"-", bytes(range(256)) * 8, b"x" * (PAGE_BYTES - 16)])
def test_notices_are_heard_as_they_were_told(what: bytes) -> None:
    page = memoryview(bytearray(PAGE_BYTES))
    assert heard(page) == (0, b"")
    for number in (1, 2, 1 << 40):
        tell(page, number, what)
        assert heard(page) == (number, what)


def test_notices_that_are_not_whole_are_not_heard() -> None:
    page = memoryview(bytearray(PAGE_BYTES))
    tell(page, 7, b"a handle")
    for at in range(16 + len(b"a handle")):
        before = page[at]
        page[at] ^= 0x10
        assert heard(page) == (0, b""), at
        page[at] = before
    assert heard(page) == (7, b"a handle")


def test_notices_of_other_hosts_are_messages() -> None:
    pages = {rank: memoryview(bytearray(PAGE_BYTES)) for rank in (0, 1)}
    mine = Notices(0, pages.__getitem__)
    mine.expect(2)
    assert mine.heard(2) == (0, b"")
    mine.hear(2, 4, b"new")
    mine.hear(2, 3, b"old")
    mine.hear(1, 9, b"of this host, by message")
    mine.expect(2)
    assert mine.heard(2) == (4, b"new") and mine.heard(1) == (0, b"")
    mine.tell(1, b"own")
    tell(pages[1], 5, b"mate")
    assert mine.heard(0) == (1, b"own") and mine.heard(1) == (5, b"mate")
