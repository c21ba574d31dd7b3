"""Segments in a child of fork(): memory of its own from what it writes on."""

from __future__ import annotations

import os

from tests.uccl_ep.forks import in_child
from uccl_ep import _native


def test_home_segments_part_at_a_fork() -> None:
    segment = _native.Segment.create("test-home", 1 << 16)
    other = _native.Segment.adopt(os.dup(segment.fd), 1 << 16)  # as a peer maps it
    view = segment.numpy()
    view[:] = 7

    def grandchild() -> int:
        return int(view[1])

    def child() -> tuple[int, ...]:
        before = int(view[0])
        view[:2] = 9
        late = int(view[-1])
        return before, late, int(other.numpy()[0]), segment.give_back(0, 1 << 16), in_child(grandchild)

    assert in_child(child) == (7, 7, 7, False, 9)
    assert int(view.min()) == int(view.max()) == int(other.numpy().max()) == 7
    view[0] = 5
    assert int(other.numpy()[0]) == 5  # the parent still shares it
    assert segment.give_back(0, 1 << 16) and not other.numpy().any()
