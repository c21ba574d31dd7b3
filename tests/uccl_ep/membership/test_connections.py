"""Frames that are sent again over a new connection: exactly those that the peer lacks, or an error."""

from __future__ import annotations

import pytest

from uccl_ep.membership.connections import MAX_QUEUED_FRAMES, SentFrames


def test_connections_sent_frames_from_any_number() -> None:
    sent = SentFrames()
    assert sent.since(0) == []
    for n in range(3):
        sent.add(bytes([n]))
    assert [sent.since(n) for n in range(4)] == [[b"\0", b"\1", b"\2"], [b"\1", b"\2"], [b"\2"], []]


@pytest.mark.parametrize("number", [-1, MAX_QUEUED_FRAMES + 3])
def test_connections_frames_that_are_kept_no_longer_are_an_error(number: int) -> None:
    sent = SentFrames()
    for n in range(MAX_QUEUED_FRAMES + 2):
        sent.add(bytes([n % 256]))
    assert len(sent.since(2)) == MAX_QUEUED_FRAMES
    for missing in (number, 1):
        with pytest.raises(OSError, match="frames are missing"):
            sent.since(missing)
