"""Calls of a Buffer as they begin and end: the last of them are kept, and torch's profiler and NVTX see them as ranges.

A call costs two looks at the clock, one entry of a ring and one of a table of durations; ranges only where somebody
looks at them.
"""

from __future__ import annotations

import functools
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from uccl_ep.errors import InvalidArgument
from uccl_ep.recorder.durations import Durations
from uccl_ep.recorder.record import Call

if TYPE_CHECKING:
    from uccl_ep.recorder.journal import Journal

DEPTH = 512
"""Calls that are kept."""
END_WORD = 2
"""Of a call in a Journal: when it returned; 0: it has not."""
_MOST_KERNELS = 16  # of one call
_NO_TENSORS = frozenset((int, bool, type(None)))
_profiler = torch.autograd.profiler
_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Pushed:
    """A range of NVTX that has begun."""

    def __exit__(self, *_: object) -> None:
        torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]


_PUSHED = _Pushed()
Running = tuple[Call, ExitStack | _Pushed | None, int]
"""A call under way: it, its ranges, and its place in the journal."""


class CallLog:
    """The last calls of one Buffer in one life.

    Args:
        nvtx: also mark calls for NVIDIA's tools.

    Attributes:
        journal: where they are written too, for a rank that is killed.
        durations: where the times of calls are counted, once somebody can look at them.
    """

    def __init__(self, nvtx: bool = False) -> None:
        self.calls: deque[Call] = deque(maxlen=DEPTH)
        self.journal: Journal | None = None
        self.durations: Durations | None = None
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._nvtx = nvtx and _has_nvtx()

    def begin(self, name: str, arguments: tuple[Any, ...] = (), number: int = 0) -> Running:
        """A call begins; what `end` must be given. `number` 0: the next of its name."""
        if number == 0:
            self._counts[name] += 1
            number = self._counts[name]
        call = Call(name, number, 0)
        for a in arguments:
            if type(a) not in _NO_TENSORS and isinstance(a, torch.Tensor):
                call.shapes.append([*a.shape])
        ranges = None
        # The flag spares a microsecond a call when nobody profiles; without it the range is always made.
        if self._nvtx or getattr(_profiler, "_is_profiler_enabled", True):
            ranges = self._enter_ranges(f"uccl_ep.{name} {number}")
        call.begin_ns = time.monotonic_ns()
        self.calls.append(call)
        journal = self.journal  # see end
        return call, ranges, -1 if journal is None else journal.begin(call)

    def end(self, running: Running, error: BaseException | None = None) -> None:
        """A call has returned, or raised."""
        call, ranges, place = running
        call.end_ns = time.monotonic_ns()
        # The agreement service may end this life meanwhile, on a thread of its own.
        journal, durations = self.journal, self.durations
        if error is not None:
            call.error = type(error).__name__
            if journal is not None and place >= 0:
                journal.failed(place, call.error)
        if journal is not None and place >= 0:
            journal.words[place + END_WORD] = call.end_ns
        if durations is not None:
            durations.add(call.name, call.end_ns - call.begin_ns, error is not None)
        if ranges is not None:
            ranges.__exit__(None if error is None else type(error), error, None)

    @contextmanager
    def call(self, name: str, number: int = 0) -> Iterator[None]:
        """A call without arguments runs inside."""
        running = self.begin(name, (), number)
        try:
            yield
        except BaseException as error:
            self.end(running, error)
            raise
        self.end(running)

    def _enter_ranges(self, label: str) -> ExitStack | _Pushed:
        if self._nvtx and not getattr(_profiler, "_is_profiler_enabled", True):
            torch.cuda.nvtx.range_push(label)  # type: ignore[no-untyped-call]
            return _PUSHED  # a stack of contexts takes ten times as long
        ranges = ExitStack()
        ranges.enter_context(torch.profiler.record_function(label))
        if self._nvtx:
            ranges.enter_context(torch.cuda.nvtx.range(label))
        return ranges

    def note(self, kernel: str) -> None:
        """A kernel of the last call was queued."""
        if self.calls:
            kernels = self.calls[-1].kernels
            if len(kernels) < _MOST_KERNELS:
                kernels.append((time.monotonic_ns(), kernel))

    def hook(self, hook: Callable[[], None]) -> Callable[[], None]:
        """A receive hook of the last call, as a call of its own: the same name and number, and "(receive)"."""
        if not self.calls:
            return hook
        name, number = f"{self.calls[-1].name} (receive)", self.calls[-1].number

        def recorded_hook() -> None:
            running = self.begin(name, (), number)
            try:
                hook()
            except BaseException as error:
                self.end(running, error)
                raise
            self.end(running)

        return recorded_hook


def _has_nvtx() -> bool:
    """Whether this torch can mark ranges; one built without CUDA cannot, also beside a GPU of another kind."""
    try:
        torch.cuda.nvtx.mark("uccl-ep")  # type: ignore[no-untyped-call]
    except RuntimeError:
        return False
    return True


def recorded(name: str) -> Callable[[_Function], _Function]:
    """Decorates a method of Buffer: its calls are recorded under `name` while the Buffer has a recorder, and what they
    refuse names them."""

    def decorate(method: _Function) -> _Function:
        @functools.wraps(method)
        def recording(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                log: CallLog | None = self.runtime.recorder.calls
            except AttributeError:  # see log_of
                log = None
            if log is not None:
                running = log.begin(name, (*args, *kwargs.values()))
            try:
                result = method(self, *args, **kwargs)
            except BaseException as error:
                if isinstance(error, InvalidArgument):
                    error.call = error.call or name
                if log is not None:
                    log.end(running, error)
                raise
            if log is not None:
                log.end(running)
            return result

        return cast(_Function, recording)

    return decorate


def log_of(session: Any) -> CallLog | None:
    """A session's calls; None: it has none, or there is no session."""
    log: CallLog | None = getattr(getattr(session, "recorder", None), "calls", None)
    return log
