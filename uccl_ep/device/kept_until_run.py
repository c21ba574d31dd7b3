"""Calls that fail after they have queued kernels (an interrupt): these run, and what they use is kept until then."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar, cast

from uccl_ep.device.protocol import Device

_Function = TypeVar("_Function", bound=Callable[..., Any])


def locals_of(trace: TracebackType | None) -> list[Any]:
    """The local variables of every frame that an exception has passed through, innermost last."""
    return [value for frame, _ in traceback.walk_tb(trace) for value in frame.f_locals.values()]


class KeptUntilRun:
    """A context around a call, or half of one, on a device.

    Its frames go with the exception, and with them tensors that queued kernels are still to read or write: their memory
    would be another tensor's by then.
    """

    def __init__(self, device: Device) -> None:
        self._device = device

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._device.break_off(locals_of(trace))


def kept_until_run(method: _Function) -> _Function:
    """Decorates a method of what has a `_device`: as in the context, which costs a call more than this does."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except BaseException:
            # Not `as error`: among the locals that are kept, it would keep itself.
            self._device.break_off(locals_of(sys.exc_info()[2]))
            raise

    return cast(_Function, call)
