"""What the calls of V2's and V2.5's buffers have in common: arguments without effect here, and events."""

from __future__ import annotations

from typing import Any

from uccl_ep import checks
from uccl_ep.device.protocol import EventHandle
from uccl_ep.errors import refuse
from uccl_ep.events import EventOverlap

_MOST = 1 << 16


def check_ignored(**arguments: Any) -> None:
    """num_qps and the like, by name: whole numbers, although they have no effect here.

    Raises:
        InvalidArgument: one is no whole number from 0 to 65536.
    """
    for name, value in arguments.items():
        checks.check_unused_int(name, value, 0, _MOST)


def behind(previous_event: Any, allocate_on_comm_stream: bool) -> EventHandle | None:
    """The bare event that a call starts behind, as upstream takes one.

    Raises:
        InvalidArgument: no event, or one without allocate_on_comm_stream.
    """
    if previous_event is not None and not allocate_on_comm_stream:
        refuse("previous_event", previous_event, "None without allocate_on_comm_stream=True")
    event: EventHandle | None = checks.event("previous_event", previous_event)
    return event


def ended(async_with_compute_stream: bool) -> EventOverlap[EventHandle]:
    """What a call returns beside its results; without an event where it was synchronous."""
    return EventOverlap(EventHandle()) if async_with_compute_stream else EventOverlap()
