"""Where kernels run and tensors live. This file: the CPU, whose stream is an ordered queue on a native thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from uccl_ep import _native
from uccl_ep.settings import Settings

_FOREVER_NS = (1 << 63) - 1


class EventHandle:
    """A point in a stream's work that another stream, or the caller, can wait for.

    Made without arguments it records the current stream. On a CPU the current stream is the calling thread, which has
    already done everything it was told to, so that event has happened.
    """

    def __init__(self, event: _native.Event | None = None, check: Callable[[], None] | None = None) -> None:
        self.native = event if event is not None else _native.Event()
        self._check = check

    def current_stream_wait(self) -> None:
        """Blocks the current stream until the event has happened.

        Raises:
            UcclEpError: what was waited for failed; see Buffer for the kinds.
        """
        self.native.wait(_FOREVER_NS)  # every kernel before it has a deadline of its own
        if self._check is not None:
            self._check()

    def query(self) -> bool:
        """Whether the event has happened; never blocks, never raises."""
        return self.native.query()


class CpuDevice:
    """Runs kernels on the CPU: the same kernels, blocks and lanes that a GPU runs, as fibers.

    Attributes:
        comm_stream: the stream that all kernels of one Buffer run on.
    """

    name = "cpu"

    def __init__(
        self, settings: Settings, check: Callable[[], None], note: Callable[[str], None] = lambda kernel: None
    ) -> None:
        self.comm_stream = _native.Stream()
        self._check = check
        self._note = note  # is told the name of each kernel that is queued
        self._held: deque[tuple[_native.Event, object]] = deque()
        self._blocks = settings.host_blocks
        self._threads = settings.host_threads

    def empty(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor on this device."""
        return torch.empty(shape, dtype=dtype)

    def zeros(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """A tensor of zeros on this device."""
        return torch.zeros(shape, dtype=dtype)

    def channels(self, num_sms: int) -> int:
        """Throughput channels for a Config's SM count. A CPU gains nothing from more than a few."""
        return max(1, min(num_sms // 2, self._blocks or 2, _native.MAX_CHANNELS))

    def shape(self, blocks: int, warps: int) -> _native.LaunchShape:
        """Launch shape for a kernel that needs exactly `blocks` blocks."""
        return _native.LaunchShape(blocks, warps, self._threads)

    def grid(self, units: int, warps: int) -> _native.LaunchShape:
        """Launch shape for a kernel whose `units` of work go round any number of blocks."""
        return self.shape(max(1, min(self._blocks or self._threads, units)), warps)

    def launch(self, kernel: Callable[..., None], args: Any, shape: _native.LaunchShape) -> None:
        """Queues a kernel on the comm stream."""
        self._note(kernel.__name__)
        kernel(self.comm_stream, args, shape)

    def record(self, held: object = None) -> EventHandle:
        """An event after everything queued on the comm stream so far; waiting for it raises the buffer's fault.

        `held` (tensors that queued kernels use) lives until the event has happened, whatever the caller drops.
        """
        event = self.comm_stream.record()
        while self._held and self._held[0][0].query():
            self._held.popleft()
        if held is not None:
            self._held.append((event, held))
        return EventHandle(event, self._check)

    def wait_for(self, event: Any) -> None:
        """Makes the comm stream wait for an event of another stream."""
        native = getattr(event, "native", None)
        if isinstance(native, _native.Event):
            self.comm_stream.wait(native)

    def finish(self) -> None:
        """Blocks the caller until the comm stream is empty, then raises the buffer's fault if there is one."""
        self.record().current_stream_wait()
