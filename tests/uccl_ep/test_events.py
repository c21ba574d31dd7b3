"""EventOverlap: DeepEP's contract, with events that count their waits instead of a device."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from uccl_ep.events import EventHandle, EventOverlap


class CountingEvent:
    """Counts waits, and notes their place in `log`."""

    def __init__(self, log: list[str] | None = None) -> None:
        self.waits = 0
        self.log = [] if log is None else log

    def current_stream_wait(self) -> None:
        self.waits += 1
        self.log.append("wait")


def test_any_object_with_the_method_is_a_handle() -> None:
    assert isinstance(CountingEvent(), EventHandle)
    assert not isinstance(object(), EventHandle)


def test_a_synchronous_call_has_no_event_and_refuses_to_wait() -> None:
    overlap: EventOverlap[CountingEvent] = EventOverlap()
    assert overlap.event is None and overlap.extra_tensors is None
    with pytest.raises(AssertionError, match="no event to wait for.*async_finish=False"):
        overlap.current_stream_wait()
    with pytest.raises(AssertionError, match="no event"):
        overlap.wait()
    with overlap as entered:  # nothing to wait for, nothing to complain about
        assert entered is overlap


def test_waits_may_repeat_and_keep_the_event() -> None:
    event = CountingEvent()
    overlap = EventOverlap(event)
    assert overlap.current_stream_wait() is None
    assert overlap.wait() is None
    assert event.waits == 2 and overlap.event is event


def test_release_drops_the_event_and_what_it_holds() -> None:
    event = CountingEvent()
    overlap = EventOverlap(event)
    held = weakref.ref(event)
    overlap.current_stream_wait(release_handle=True)
    assert overlap.event is None and event.waits == 1
    del event
    gc.collect()
    assert held() is None


def test_hook_runs_once_after_the_wait_and_gives_the_result() -> None:
    log: list[str] = []

    def hook() -> str:
        log.append("hook")
        return "sorted"

    overlap = EventOverlap(CountingEvent(log))
    overlap.register_hook_after_wait(hook)
    with pytest.raises(AssertionError, match="already registered"):
        overlap.register_hook_after_wait(hook)
    assert overlap.current_stream_wait() == "sorted"
    assert overlap.hook_after_wait is None
    assert overlap.wait() is None
    assert log == ["wait", "hook", "wait"]
    overlap.register_hook_after_wait(hook)  # free again after it ran
    assert overlap.wait() == "sorted"


def test_a_failing_hook_is_not_run_again() -> None:
    overlap = EventOverlap(CountingEvent())

    def hook() -> None:
        raise KeyError("row")

    overlap.register_hook_after_wait(hook)
    with pytest.raises(KeyError):
        overlap.wait()
    assert overlap.wait() is None


def test_context_waits_at_its_end() -> None:
    log: list[str] = []
    overlap = EventOverlap(CountingEvent(log))
    with overlap:
        log.append("body")
    assert log == ["body", "wait"]
    assert overlap.event is not None


def test_context_waits_also_when_the_body_fails_and_lets_the_error_through() -> None:
    event = CountingEvent()
    with pytest.raises(ZeroDivisionError), EventOverlap(event):
        raise ZeroDivisionError
    assert event.waits == 1


def test_call_sets_release_for_one_exit_only() -> None:
    overlap = EventOverlap(CountingEvent())
    with overlap(release_handle=True) as entered:
        assert entered is overlap and overlap.event is not None
    assert overlap.event is None
    overlap.event = CountingEvent()
    with overlap:
        pass
    assert overlap.event is not None
    assert overlap(release_handle=True)() is overlap  # the last call counts
    with overlap:
        pass
    assert overlap.event is not None


def test_extra_tensors_live_as_long_as_the_overlap() -> None:
    tensor = torch.zeros(3)
    held = weakref.ref(tensor)
    overlap = EventOverlap(CountingEvent(), (tensor,))
    del tensor
    gc.collect()
    assert held() is not None
    del overlap
    gc.collect()
    assert held() is None
