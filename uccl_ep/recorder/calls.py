"""Calls of a Buffer as they begin and end: the last of them are kept, and torch's profiler and NVTX see them as ranges.

A call costs two looks at the clock and one entry of a ring; ranges only where somebody looks at them.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar, cast

import torch

DEPTH = 512
"""Calls that are kept."""
_MOST_KERNELS = 16  # of one call
_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass
class Call:
    """One call.

    Attributes:
        name, number: what was called, and how many of that name there were with it: of a low-latency call the epoch.
        begin_ns, end_ns: CLOCK_MONOTONIC; end 0: it has not returned.
        shapes: of its tensor arguments.
        error: type of what it raised.
        kernels: (when it was queued, name) of each kernel.
    """

    name: str
    number: int
    begin_ns: int
    end_ns: int = 0
    shapes: list[list[int]] = field(default_factory=list)
    error: str = ""
    kernels: list[tuple[int, str]] = field(default_factory=list)


class CallLog:
    """The last calls of one Buffer in one life.

    Args:
        nvtx: also mark calls for NVIDIA's tools.
    """

    def __init__(self, nvtx: bool = False) -> None:
        self.calls: deque[Call] = deque(maxlen=DEPTH)
        self._counts: dict[str, int] = {}
        self._nvtx = nvtx and _has_nvtx()

    def call(self, name: str, arguments: tuple[Any, ...] = (), number: int = 0) -> Running:
        """A context: the call runs inside. `number` 0: the next of its name."""
        if number == 0:
            number = self._counts[name] = self._counts.get(name, 0) + 1
        shapes = [list(a.shape) for a in arguments if isinstance(a, torch.Tensor)]
        return Running(self, Call(name, number, 0, shapes=shapes), self._nvtx)

    def note(self, kernel: str) -> None:
        """A kernel of the last call was queued."""
        if self.calls and len(self.calls[-1].kernels) < _MOST_KERNELS:
            self.calls[-1].kernels.append((time.monotonic_ns(), kernel))

    def hook(self, hook: Callable[[], None]) -> Callable[[], None]:
        """A receive hook of the last call, as a call of its own: the same name and number, and "(receive)"."""
        if not self.calls:
            return hook
        name, number = f"{self.calls[-1].name} (receive)", self.calls[-1].number

        def recorded_hook() -> None:
            with self.call(name, number=number):
                hook()

        return recorded_hook


def _has_nvtx() -> bool:
    """Whether this torch can mark ranges; one built without CUDA cannot, also beside a GPU of another kind."""
    try:
        torch.cuda.nvtx.mark("uccl-ep")  # type: ignore[no-untyped-call]
    except RuntimeError:
        return False
    return True


class Running:
    """A call that is under way; made by CallLog.call."""

    def __init__(self, log: CallLog, call: Call, nvtx: bool) -> None:
        self._log, self._call, self._nvtx = log, call, nvtx
        self._ranges: ExitStack | None = None

    def __enter__(self) -> None:
        # The flag spares a microsecond a call when nobody profiles; without it the range is always made.
        profiled = getattr(torch.autograd.profiler, "_is_profiler_enabled", True)
        if profiled or self._nvtx:
            self._ranges = ExitStack()
            label = f"uccl_ep.{self._call.name} {self._call.number}"
            if profiled:
                self._ranges.enter_context(torch.profiler.record_function(label))
            if self._nvtx:
                self._ranges.enter_context(torch.cuda.nvtx.range(label))
        self._call.begin_ns = time.monotonic_ns()
        self._log.calls.append(self._call)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call.end_ns = time.monotonic_ns()
        self._call.error = kind.__name__ if kind else ""
        if self._ranges is not None:
            self._ranges.__exit__(kind, error, trace)


def recorded(name: str) -> Callable[[_Function], _Function]:
    """Decorates a method of Buffer: its calls are recorded under `name` while the Buffer has a recorder."""

    def decorate(method: _Function) -> _Function:
        @functools.wraps(method)
        def recording(self: Any, *args: Any, **kwargs: Any) -> Any:
            log = log_of(getattr(self, "runtime", None))
            if log is None:
                return method(self, *args, **kwargs)
            with log.call(name, (*args, *kwargs.values())):
                return method(self, *args, **kwargs)

        return cast(_Function, recording)

    return decorate


def log_of(session: Any) -> CallLog | None:
    """A session's calls; None: it has none, or there is no session."""
    log: CallLog | None = getattr(getattr(session, "recorder", None), "calls", None)
    return log
