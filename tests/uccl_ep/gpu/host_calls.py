"""What a call of Buffer costs the host, counted: functions that it calls, and what it asks of the GPU's driver.

Counts depend neither on the machine nor on its load. Functions are Python's and those C functions that Python calls by
name; what the fake driver does inside is not counted, each of its methods is one.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from tests.uccl_ep.gpu import fake_driver, fake_graph
from uccl_ep.gpu.driver import Driver

_FAKES = {fake_driver.__file__, fake_graph.__file__, __file__}
DRIVER = frozenset(name for name in vars(Driver) if not name.startswith("_"))


@dataclass
class HostCalls:
    """Of one call: functions, and the driver's methods among them by name."""

    functions: int = 0
    driver: Counter[str] = field(default_factory=Counter)
    names: Counter[str] = field(default_factory=Counter)

    @property
    def driver_calls(self) -> int:
        """All of the driver's."""
        return self.driver.total()


def count(call: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[HostCalls, Any]:
    """What a call of the calling thread costs, and what it returns."""
    found = HostCalls()

    def look(frame: FrameType, event: str, function: Any) -> None:
        code = frame.f_code
        if event == "c_call" and code.co_filename not in _FAKES:
            found.functions += 1
            found.names[function.__name__] += 1
        elif event == "call":
            back = frame.f_back
            inside = back is not None and back.f_code.co_filename in _FAKES
            if inside and back is not mine:
                return
            found.functions += 1
            found.names[code.co_name] += 1
            if code.co_filename in _FAKES and code.co_name in DRIVER:
                found.driver[code.co_name] += 1

    mine = sys._getframe()
    sys.setprofile(look)
    try:
        result = call(*args, **kwargs)
    finally:
        sys.setprofile(None)
    return found, result


@contextmanager
def kept_results() -> Iterator[None]:
    """What torch makes lives on: the CPU's allocator would give memory of a queued kernel to the next caller. The
    tests' `Retainer` does so too, by functions of its own that would be counted. Nor is garbage of earlier tests
    collected inside, whose finalizers would be."""
    kept: list[Any] = []
    empty, zeros = torch.empty, torch.zeros

    def keep(make: Any) -> Any:
        def made(*args: Any, **kwargs: Any) -> Any:
            kept.append(make(*args, **kwargs))
            return kept[-1]

        return made

    gc.collect()
    gc.disable()
    torch.empty, torch.zeros = keep(empty), keep(zeros)
    try:
        yield
    finally:
        gc.enable()
        torch.empty, torch.zeros = empty, zeros
