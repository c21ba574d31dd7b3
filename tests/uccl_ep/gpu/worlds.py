"""For tests of ranks on the fake GPU: Buffer finds it where it looks for a real one; each rank has its own stream."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from tests.uccl_ep.gpu.fake_driver import FakeDriver, fake_builder
from uccl_ep import ThreadGroup, run_ranks
from uccl_ep.gpu.kernels import library
from uccl_ep.group.handshake import Hello
from uccl_ep.session import session
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


class Hosts:
    """Ranks of this process that stand for ranks of several hosts. Each host has a fake GPU and identities of its own:
    its ranks share memory as threads do, and reach nothing of another host but what its GPU has exported.

    Args:
        domains: of each host: the NVLink domain of its GPU.
        ranks_per_host: threads.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, domains: Sequence[str], ranks_per_host: int = 2) -> None:
        self.drivers = [
            FakeDriver(num_sms=6 * ranks_per_host, host=f"host{n}", domain=domain) for n, domain in enumerate(domains)
        ]
        self.size, self._ranks_per_host = len(domains) * ranks_per_host, ranks_per_host
        self._here = threading.local()
        install(monkeypatch, *self.drivers)
        monkeypatch.setattr(session, "host_identity", lambda: self._here.host)
        monkeypatch.setattr(session, "socket", SimpleNamespace(gethostname=lambda: self._here.host))
        monkeypatch.setattr(session, "process_name", lambda: f"{self._here.host}/{os.getpid()}")
        introduce = session.Session._introduce

        def on_its_host(self_: session.Session, group: ThreadGroup, shared: Mapping[str, Any]) -> list[Hello]:
            self.enter(group.rank())  # the thread may be one that a rank has started
            return introduce(self_, group, shared)

        monkeypatch.setattr(session.Session, "_introduce", on_its_host)

    def driver_of(self, rank: int) -> FakeDriver:
        """Of the rank's host."""
        return self.drivers[rank // self._ranks_per_host]

    def enter(self, rank: int) -> int:
        """The calling thread is on the rank's host from now on; returns the host's number."""
        number = rank // self._ranks_per_host
        self._here.host = f"host{number}"
        return number

    def leave_domain(self, host: int) -> None:
        """Its GPU is in no domain any more, as NVML says from now on."""
        driver = self.drivers[host]
        driver.facts = replace(driver.facts, domain="", domain_reason="a test has taken it out")

    def run(self, body: Callable[[ThreadGroup, FakeDriver, str], T]) -> list[T]:
        """body(group, driver, name of the driver's device) on each rank's thread, on a stream of its own."""

        def on_host(group: ThreadGroup) -> T:
            number = self.enter(group.rank())
            with self.drivers[number].rank():
                return body(group, self.drivers[number], f"cuda:{number}")

        return run_ranks(self.size, on_host)
