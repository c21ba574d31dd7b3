"""Where ranks run that are threads of one process: a CPU, or one GPU that plays all of them on streams of their own."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch

from uccl_ep.errors import UcclEpError
from uccl_ep.settings import PREFIX, settings

Body = Callable[[], None]
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
_CYCLES_A_MS = 1.9e6  # of today's GPUs, about
_cuda: Any = torch.cuda  # torch leaves parts of it untyped
_capturing = threading.Lock()  # one recording at a time; replays run at once


class Mark(Protocol):
    """A point on a stream whose time is known once it has passed."""

    def ms_after(self, earlier: Any) -> float:
        """Milliseconds since an earlier mark."""


class Platform(Protocol):
    """What benchmarks and GPU tests ask of the place that they run on."""

    name: str
    device: str  # for Buffer(device=...)
    where: torch.device
    driver: Any  # uccl_ep.gpu.driver.Driver, or None

    def rank(self) -> AbstractContextManager[Any]:
        """Within it the calling thread is a rank: it has a current stream of its own."""

    def synchronize(self) -> None:
        """Waits for the calling thread's current stream."""

    def mark(self) -> Mark:
        """A mark on the current stream."""

    def hold(self, ms: float) -> Any:
        """Keeps the calling thread's current stream busy for about so long.

        Returns:
            The event at its end: streams that wait for it go on together.
        """

    def record(self, body: Body) -> Body:
        """Runs `body` once as a recording; the result replays it on the current stream.

        Raises:
            UcclEpError: there are no graphs here.
        """


class HostMark:
    """A mark where work is done when a call returns."""

    def __init__(self) -> None:
        self.at_s = time.perf_counter()

    def ms_after(self, earlier: HostMark) -> float:
        return (self.at_s - earlier.at_s) * 1e3


class CpuPlatform:
    """Kernels run as fibers; a call returns when its work is done."""

    name = device = "cpu"
    where = torch.device("cpu")
    driver = None

    def rank(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def synchronize(self) -> None:
        pass

    def mark(self) -> HostMark:
        return HostMark()

    def hold(self, ms: float) -> Any:
        raise UcclEpError("a CPU has no streams")

    def record(self, body: Body) -> Body:
        raise UcclEpError("a CPU has no graphs")


class CudaMark:
    """A timed event on the current stream."""

    def __init__(self) -> None:
        self.event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.event.record()

    def ms_after(self, earlier: CudaMark) -> float:
        self.event.synchronize()
        return float(earlier.event.elapsed_time(self.event))


class GpuPlatform:
    """One GPU that plays every rank.

    Args:
        driver: as Buffer uses it.
        device: its name for Buffer.
    """

    def __init__(self, driver: Any, device: str) -> None:
        self.driver, self.device = driver, device
        self.name, self.where = driver.facts.name, driver.torch_device

    def rank(self) -> AbstractContextManager[Any]:
        return self.driver.on(self.driver.new_stream())  # type: ignore[no-any-return]

    def synchronize(self) -> None:
        self.driver.synchronize(self.driver.record(self.driver.current_stream()))

    def mark(self) -> Mark:
        return CudaMark()

    def hold(self, ms: float) -> Any:
        _cuda._sleep(int(ms * _CYCLES_A_MS))
        return self.driver.record(self.driver.current_stream())

    def record(self, body: Body) -> Body:
        graph = torch.cuda.CUDAGraph()
        self.synchronize()
        with _capturing:
            # Other ranks' threads go on calling CUDA meanwhile, hence thread_local.
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                body()
            finally:
                graph.capture_end()
        return graph.replay


def open_platform(device: str) -> Platform:
    """ "cpu", "cuda", "cuda:1", "hip", or "auto": a GPU where there is one.

    Raises:
        UcclEpError: no such device; says why.
    """
    if device == "cpu":
        return CpuPlatform()
    from uccl_ep.gpu import cupy_driver

    usable, reason = cupy_driver.available()
    if not usable:
        if device == "auto":
            return CpuPlatform()
        raise UcclEpError(f"--device {device}: {reason}")
    wanted = "cuda" if device == "auto" else device
    return GpuPlatform(cupy_driver.open_driver(wanted), wanted)


@contextmanager
def variables(**values: object) -> Iterator[None]:
    """UCCL_EP_* of this process for a while; nothing else of that name is set meanwhile."""
    before = {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}
    _set({**_kept(before), **{PREFIX + name.upper(): str(value) for name, value in values.items()}})
    try:
        yield
    finally:
        _set(before)


def _kept(before: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in before.items() if name == PREFIX + "CACHE_DIR"}


def _set(wanted: dict[str, str]) -> None:
    for name in [n for n in os.environ if n.startswith(PREFIX)]:
        del os.environ[name]
    os.environ.update(wanted)
    settings.cache_clear()
