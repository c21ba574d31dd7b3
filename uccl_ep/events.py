"""`EventOverlap`: DeepEP's wrapper around "the communication that was started is finished".

Only the pure part: this file knows no stream and no device. Anything with `current_stream_wait()` can be the event;
the real one is in the device module. A synchronous call returns an EventOverlap whose `event` is None, because
integrators branch on exactly that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class EventHandle(Protocol):
    """A point in a stream's work that other streams can wait for."""

    def current_stream_wait(self) -> None:
        """Make the caller's current stream wait until the event is reached."""


Event = TypeVar("Event", bound=EventHandle)


class EventOverlap(Generic[Event]):
    """The end of an asynchronous call, to be waited for by the stream that uses its results.

    Args:
        event: what to wait for; None when the call was synchronous and there is nothing to wait for.
        extra_tensors: tensors that must stay alive until the event; held as long as this object.

    Attributes: `event`, `extra_tensors`, and `hook_after_wait`, the function still to run after the wait, or None.

    As a context manager it overlaps: the body runs, then the current stream waits (only if there is an event).
    """

    def __init__(self, event: Event | None = None, extra_tensors: Sequence[Tensor] | None = None) -> None:
        self.event = event
        self.extra_tensors = extra_tensors
        self.hook_after_wait: Callable[[], Any] | None = None
        self._release_on_exit = False

    def current_stream_wait(self, release_handle: bool = False) -> Any:
        """Make the current stream wait for the event, then run the registered hook, once.

        Args:
            release_handle: also drop the event afterwards (`event` becomes None) and so free what it holds.

        Returns:
            The hook's result, or None when there was no hook.

        Raises:
            AssertionError: there is no event.
        """
        if self.event is None:
            # Not an `assert`: DeepEP's contract must hold under `python -O` too.
            raise AssertionError(
                "this EventOverlap has no event to wait for: the call was synchronous (async_finish=False), its event "
                "was already released (release_handle=True), or it was made empty. Check `.event is not None` first."
            )
        self.event.current_stream_wait()
        # Cleared before the call: a hook that fails, or waits itself, must not run twice.
        hook, self.hook_after_wait = self.hook_after_wait, None
        result = hook() if hook is not None else None
        if release_handle:
            self.event = None
        return result

    def wait(self) -> Any:
        """`current_stream_wait()` under the name that torch's work objects use."""
        return self.current_stream_wait()

    def register_hook_after_wait(self, hook_after_wait: Callable[[], Any]) -> None:
        """Have `hook_after_wait()` run after the next wait.

        Raises:
            AssertionError: a hook is registered and has not run yet.
        """
        if self.hook_after_wait is not None:
            raise AssertionError("a hook is already registered on this EventOverlap and has not run: only one is kept")
        self.hook_after_wait = hook_after_wait

    def __call__(self, release_handle: bool = False) -> EventOverlap[Event]:
        """For `with event(release_handle=True):` sets whether that exit drops the event. Returns this object."""
        self._release_on_exit = release_handle
        return self

    def __enter__(self) -> EventOverlap[Event]:
        """Start of the part that overlaps with the communication. Returns this object."""
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait if there is an event, also when the body failed: its tensors may still be in use."""
        release, self._release_on_exit = self._release_on_exit, False
        if self.event is not None:
            self.current_stream_wait(release)
