"""Counters of executed PTX for `tests.gpu.critical_paths`: `python -m tests.gpu.critical_paths tests.gpu.ptx.counting`.

Kernels run without the judge: what is counted does not depend on it.
"""

from __future__ import annotations

import atexit
from contextlib import ExitStack

from tests.gpu.critical_paths import KernelCounts
from tests.gpu.ptx.executor import World, playing
from tests.gpu.ptx.machine import Counts
from tests.uccl_ep.gpu.fake_driver import FakeDriver

_open = ExitStack()
atexit.register(_open.close)
_worlds: dict[int, World] = {}


def open_driver(num_sms: int) -> FakeDriver:
    """A fake GPU whose kernels are executed and counted; it lasts until the next one is opened."""
    _open.close()
    world = World("compute_90a", 1, 0, judge=False)
    world.keep_counts = True
    _open.enter_context(playing(world))
    driver = FakeDriver(num_sms=num_sms)
    _worlds[id(driver)] = world
    return driver


def launches(driver: FakeDriver) -> list[Counts]:
    """All that the machine counted of the launches since this was last asked.

    Raises:
        AssertionError: a kernel broke PTX's rules.
    """
    world = _worlds[id(driver)]
    assert not world.errors, world.errors[0]
    seen, world.counts = world.counts, []
    return seen


def counts(driver: FakeDriver) -> list[KernelCounts]:
    """The same, as far as the table of critical paths shows it."""
    return [
        KernelCounts(c.kernel, c.grid, c.warps, c.busiest_lane16, c.warp16, c.host_reads, c.plain_host_reads)
        for c in launches(driver)
    ]
