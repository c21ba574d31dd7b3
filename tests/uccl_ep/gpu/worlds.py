"""For tests of ranks on the fake GPU: Buffer finds it where it looks for a real one; each rank has its own stream."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import TypeVar

import pytest

from tests.uccl_ep.gpu.fake_driver import FakeDriver, fake_builder
from uccl_ep import ThreadGroup, run_ranks
from uccl_ep.gpu.kernels import library
from uccl_ep.settings import settings

T = TypeVar("T")


def install(monkeypatch: pytest.MonkeyPatch, *drivers: FakeDriver) -> FakeDriver:
    """Makes the drivers this process's GPUs cuda:0, cuda:1, ...; returns the first."""

    def open_driver(device: str | None = None) -> FakeDriver:
        number = str(device or "cuda:0").partition(":")[2]
        return drivers[int(number or 0)]

    for driver in drivers:
        driver.library = library(driver, fake_builder)  # type: ignore[arg-type]  # found as long as it lives
    module = SimpleNamespace(available=lambda: (True, "a fake"), open_driver=open_driver)
    monkeypatch.setitem(sys.modules, "uccl_ep.gpu.cupy_driver", module)  # type: ignore[arg-type]
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    monkeypatch.setenv("UCCL_EP_DEVICE", "auto")
    settings.cache_clear()
    return drivers[0]


def run_gpu_ranks(driver: FakeDriver, size: int, body: Callable[[ThreadGroup], T], own_stream: bool = True) -> list[T]:
    """run_ranks, each rank on its own stream of one GPU, or all on the default stream."""

    def on_stream(group: ThreadGroup) -> T:
        with driver.rank(own_stream):
            return body(group)

    return run_ranks(size, on_stream)
