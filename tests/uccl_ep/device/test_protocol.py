"""What holds for events and tensors whatever device they belong to."""

from __future__ import annotations

import copy

import pytest
import torch

from uccl_ep import EventHandle
from uccl_ep.device.protocol import HostWords, current_point, refuse_elsewhere
from uccl_ep.errors import InvalidArgument, UcclEpError


class Fake:
    """A point that is reached when somebody waits for it."""

    def __init__(self) -> None:
        self.reached, self.waits = False, 0

    def query(self) -> bool:
        return self.reached

    def wait(self, timeout_ns: int) -> bool:
        self.waits += 1
        self.reached = True
        return True


def test_protocol_event_of_the_current_stream_has_happened() -> None:
    event = EventHandle()
    assert event.query()
    event.current_stream_wait()


def test_protocol_event_checks_the_buffer_when_its_point_is_reached() -> None:
    point = Fake()
    seen: list[bool] = []
    event = EventHandle(point, lambda: seen.append(point.reached))
    assert not event.query() and not seen
    event.current_stream_wait()
    assert event.query() and seen == [True]


def test_protocol_event_is_recorded_where_the_process_computes() -> None:
    point = Fake()
    current_point.append(lambda: point)
    try:
        assert EventHandle().native is point
    finally:
        current_point.pop()
    assert EventHandle().native is not point


def test_protocol_events_are_not_copied() -> None:
    with pytest.raises(UcclEpError):
        copy.copy(EventHandle())


def test_protocol_host_words_are_where_they_say() -> None:
    tensor = torch.arange(3)
    words = HostWords(tensor, 4096)
    assert words.data_ptr() == 4096 and words.tensor is tensor


def test_protocol_tensors_elsewhere_are_refused_with_both_devices_named() -> None:
    with pytest.raises(InvalidArgument, match="x must be a tensor on cuda:1, where .*; got a tensor on meta."):
        refuse_elsewhere("x", torch.zeros(1, device="meta"), "cuda:1")
