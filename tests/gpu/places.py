"""Where the bodies of this folder run: a GPU, the fake one of tests/uccl_ep/gpu, or the CPU; ranks are threads."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

from bench.device.platforms import Body, CpuPlatform, GpuPlatform, HostMark, Mark, Platform, open_platform
from tests.end_to_end.world import World, as_threads
from tests.uccl_ep.gpu.fake_driver import FakeDriver
from tests.uccl_ep.gpu.worlds import install

PLACES = ("cpu", "fake", pytest.param("cuda", marks=pytest.mark.gpu))


class FakePlatform(GpuPlatform):
    """A CPU behind a GPU's contract: streams, capture and memory are as strict as there."""

    driver: FakeDriver

    def rank(self) -> AbstractContextManager[Any]:
        return self.driver.rank()

    def synchronize(self) -> None:
        self.driver.settle()

    def mark(self) -> Mark:
        return HostMark()

    def hold(self, ms: float) -> Any:
        return self.driver.record(self.driver.current_stream())

    def record(self, body: Body) -> Body:
        with self.driver.capture() as graph:
            body()
        return lambda: self.driver.replay(graph)


def on_default_stream(platform: Platform) -> AbstractContextManager[Any]:
    """A thread without a stream of its own; what it frees is kept from reuse, as a GPU's allocator would."""
    return platform.driver.rank(False) if isinstance(platform, FakePlatform) else nullcontext()


def open_place(name: str, monkeypatch: pytest.MonkeyPatch) -> Platform:
    """A platform by name; skips where there is no GPU, and says why."""
    if name == "cpu":
        return CpuPlatform()
    if name == "fake":
        return FakePlatform(install(monkeypatch, FakeDriver(num_sms=64)), "cuda")
    from uccl_ep.gpu import cupy_driver

    usable, reason = cupy_driver.available()
    if not usable:
        pytest.skip(f"NOT RUN ON A GPU: {reason}")
    return open_platform("cuda")


def run(platform: Platform, world: World, body: Any, *arguments: Any) -> list[Any]:
    """body(group, platform, *arguments) on every rank, each on its own stream; results by rank."""

    def on_stream(group: Any) -> Any:
        with platform.rank():
            return body(group, platform, *arguments)

    return as_threads(world, on_stream)


class Here:
    """Moves tensors between the host, where they are made and judged, and the platform."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform

    def put(self, value: torch.Tensor | None) -> Any:
        """A copy on the platform; on a CPU too, so that a kernel that writes its input is seen."""
        return None if value is None else value.clone(memory_format=torch.preserve_format).to(self.platform.where)

    def get(self, value: torch.Tensor | None) -> Any:
        """On the host, after everything queued on the current stream."""
        self.platform.synchronize()
        return None if value is None else value.cpu()
