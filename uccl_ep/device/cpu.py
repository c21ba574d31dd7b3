"""The CPU as a device: its stream is a native thread, which runs kernels as fibers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from uccl_ep import _native
from uccl_ep.device.output_pool import OutputPool
from uccl_ep.device.protocol import EventHandle, HostWords, refuse_elsewhere
from uccl_ep.settings import Settings

_NOTHING = nullcontext()


class CpuDevice:
    """Runs kernels on the CPU: the same kernels, blocks and lanes that a GPU runs, as fibers. See Device."""

    name = "cpu"
    where = torch.device("cpu")
    host_memory = True
    shape = _native.DeviceShape.of_host()
    share = None

    def __init__(
        self,
        settings: Settings,
        check: Callable[[], None],
        note: Callable[[str], None] = lambda kernel: None,
        arena: _native.Segment | None = None,
    ) -> None:
        self.comm_stream = _native.Stream(deferred=True)  # every call ends by asking for an event, or for the end
        self._check = check
        self._note = note  # is told the name of each kernel that is queued
        self._held: deque[tuple[_native.Event, object]] = deque()
        self._open = False  # a kernel was launched and its end not asked for
        self._blocks = settings.host_blocks
        self._threads = settings.host_threads or 1  # 0 is worked out by make_device
        self._results = OutputPool(arena)

    def empty(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor on this device."""
        return self._results.empty(shape, dtype)

    def arena_offset(self, tensor: torch.Tensor) -> int | None:
        """Bytes from the beginning of this rank's arena to a contiguous tensor; None: it is not there."""
        return self._results.arena_offset(tensor)

    def zeros(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """A tensor of zeros on this device."""
        return torch.zeros(shape, dtype=dtype)

    def pinned(self, num: int, dtype: torch.dtype) -> HostWords:
        """A plain tensor: kernels and host share all memory."""
        tensor = torch.empty(num, dtype=dtype)
        return HostWords(tensor, tensor.data_ptr())

    def channels(self, num_sms: int) -> int:
        """Throughput channels for a Config's SM count. A CPU gains nothing from more than a few."""
        return max(1, min(num_sms // 2, self._blocks or 2, _native.MAX_CHANNELS))

    def begin(self, on_caller: bool = False) -> int:
        """Nothing: the caller has done all that it was told to."""
        return 0

    def behind(self, previous_event: Any) -> AbstractContextManager[Any]:
        """Makes the comm stream wait for an event of another stream."""
        self.wait_for(previous_event)
        return _NOTHING

    def launch(self, launch: _native.Launch) -> None:
        """Queues a kernel on the comm stream, with a block for each of its threads where it may have fewer."""
        self._note(launch.kernel)
        self._open = True
        blocks = launch.blocks if launch.exact else min(launch.blocks, self._blocks or self._threads)
        launch.queue(self.comm_stream, blocks, self._threads)

    def record(self, held: object = None) -> EventHandle:
        """An event after everything queued on the comm stream so far; waiting for it raises the buffer's fault.

        `held` (tensors that queued kernels use) lives until the event has happened, whatever the caller drops.
        """
        event = self.comm_stream.record()
        self._open = False
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
        elif native is not None:
            native.synchronize()  # of a GPU, which this stream cannot wait for by itself

    def end(self, held: object = None, sent_on: int | None = None) -> None:
        """Waits: the caller reads results as soon as a call has returned."""
        self.finish()

    def finish(self) -> None:
        """Returns when the comm stream is empty, running what is left of it; then raises the buffer's fault, if any."""
        try:
            self.comm_stream.finish()
        finally:
            self._open = False
        self._held.clear()
        self._check()

    def break_off(self, held: object) -> None:
        """Lets the stream's thread run what the call has queued."""
        if self._open:
            self.record(held)

    def check_host_wait(self) -> None:
        """Nothing: a CPU can always wait."""

    def catch_up(self) -> None:
        """As finish."""
        self.finish()

    def expect_replays(self) -> None:
        """Nothing: a CPU has no graphs."""

    def capturing(self) -> bool:
        """A CPU has no graphs."""
        return False

    def check_tensor(self, name: str, value: torch.Tensor) -> None:
        """Raises InvalidArgument when an argument is not in host memory."""
        if not value.is_cpu:
            refuse_elsewhere(name, value, self.name)

    def settle(self) -> None:
        """Nothing: the thread has done all that it was told to."""

    def give_back(self) -> None:
        """Gives free blocks of the results' memory back to the system."""
        self._results.give_back_free()

    def close(self) -> None:
        """Waits for the comm stream."""
        self.comm_stream.synchronize()
        self._held.clear()
        self._results.close()
