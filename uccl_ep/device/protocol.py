"""What every call asks of the device that its kernels run on and its tensors live on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from uccl_ep import _native
from uccl_ep.errors import Described, refuse
from uccl_ep.system import ownership

_FOREVER_NS = (1 << 63) - 1


class Memory(Protocol):
    """What kernels read or write: a tensor, or words that the host shares with them."""

    def data_ptr(self) -> int:
        """Its address, as kernels see it."""


class Point(Protocol):
    """A point in a stream's work."""

    def wait(self, timeout_ns: int) -> bool:
        """Makes the caller's current stream wait for it; on a CPU that is the calling thread."""

    def query(self) -> bool:
        """Whether it has been reached; never blocks."""


# What EventHandle() records. A process that uses GPUs has them put their current stream here (uccl_ep.gpu.streams).
current_point: list[Callable[[], Point]] = [_native.Event]


class EventHandle(ownership.NoCopies):
    """A point in a stream's work that another stream, or the caller, can wait for.

    Made without arguments it records the current stream. On a CPU the current stream is the calling thread, which has
    already done everything it was told to, so that event has happened.
    """

    def __init__(self, event: Point | None = None, check: Callable[[], None] | None = None) -> None:
        self.native: Point = event if event is not None else current_point[-1]()
        self._check = check
        self._made_in = ownership.here

    def current_stream_wait(self) -> None:
        """Makes the current stream wait until the event has happened; on a CPU that is the caller.

        On a GPU the caller goes on at once, so a fault of work that still runs is raised by a later call.

        Raises:
            UcclEpError: what was waited for failed; see Buffer for the kinds.
            InvalidArgument: this is a child that fork() has made since.
        """
        ownership.refuse_elsewhere(self._made_in)
        self.native.wait(_FOREVER_NS)  # every kernel before it has a deadline of its own
        if self._check is not None:
            self._check()

    def query(self) -> bool:
        """Whether the event has happened; never blocks. Raises nothing but what a child of fork() is told."""
        ownership.refuse_elsewhere(self._made_in)
        return self.native.query()


class HostWords:
    """A small array that kernels write and the host reads: `tensor` for the host, `data_ptr()` for kernels."""

    def __init__(self, tensor: torch.Tensor, address: int) -> None:
        self.tensor = tensor
        self._address = address

    def data_ptr(self) -> int:
        """Its address as kernels see it."""
        return self._address


class Device(Protocol):
    """What a Buffer asks of the processor that its kernels run on.

    Every call of Buffer is: `begin` (or `behind`), any number of `launch`, then one of `end`, `record` and `finish`.

    Attributes:
        name: "cpu", or what torch calls the device, such as "cuda:0".
        where: the torch device of all tensors.
        host_memory: the host may look at tensors at any time; otherwise that waits for the device.
        shape: what launch shapes follow, of this rank's share of the device.
        comm_stream: the stream that kernels run on, except between the halves of a call with a hook.
    """

    name: str
    where: torch.device
    host_memory: bool
    shape: _native.DeviceShape
    comm_stream: Any

    @property
    def share(self) -> object:
        """This rank's part of the device, by which grids are cut: equal where it is the same."""

    def empty(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor, on the stream that the call at hand allocates from."""

    def zeros(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Likewise, of zeros."""

    def arena_offset(self, tensor: torch.Tensor) -> int | None:
        """Bytes from the beginning of this rank's arena to a contiguous tensor; None: it is not there."""

    def pinned(self, num: int, dtype: torch.dtype) -> HostWords:
        """An array of `num` elements that kernels write, for the host to read after `finish`."""

    def channels(self, num_sms: int) -> int:
        """Throughput channels for a Config's SM count; the same on all ranks."""

    def begin(self, on_caller: bool = False) -> int:
        """Starts a call: its kernels run after what the caller has queued; on the caller's stream with `on_caller`.
        Returns what `end` of the call's other half is to be told."""

    def behind(self, previous_event: Any) -> AbstractContextManager[Any]:
        """Starts a call whose kernels run after `previous_event` only (None: as begin). What the call allocates and
        converts within the context is ordered like its kernels."""

    def launch(self, launch: _native.Launch) -> None:
        """Queues a kernel. Its blocks are those that the launch asks for, or fewer where it leaves that open."""

    def record(self, held: object = None) -> EventHandle:
        """Ends a call asynchronously: an event after all its kernels. `held`: the tensors that they use."""

    def end(self, held: object = None, sent_on: int | None = None) -> None:
        """Ends a call: what the caller does next comes after its kernels. On a CPU this waits, on a GPU it does not.
        `held`: the tensors that they use. `sent_on`: what `begin` returned of the call whose other half this is."""

    def finish(self) -> None:
        """Waits until the host may read what the call's kernels wrote; then raises the buffer's fault, if any."""

    def break_off(self, held: object) -> None:
        """Ends a call that has failed, without waiting. If it has queued kernels, memory that they use, which `held`
        names, is nobody else's before they have run."""

    def check_host_wait(self) -> None:
        """Raises NotSupported where `finish` cannot be: in a graph capture."""

    def catch_up(self) -> None:
        """What the caller does next comes after every kernel of this Buffer so far."""

    def capturing(self) -> bool:
        """Whether the call that has begun is recorded into a graph instead of run."""

    def expect_replays(self) -> None:
        """Graphs hold kernels of this device that no call announces."""

    def check_tensor(self, name: str, value: torch.Tensor) -> None:
        """Raises InvalidArgument when an argument lies elsewhere."""

    def settle(self) -> None:
        """Waits for what this thread has queued, so that calls on any stream find it done."""

    def give_back(self) -> None:
        """Gives free memory of former results back to the system, where it is this device's to give."""

    def close(self) -> None:
        """Waits for what is queued. The device is of no use afterwards; idempotent."""


def refuse_elsewhere(name: str, value: torch.Tensor, device: str) -> None:
    """Raises InvalidArgument for a tensor on the wrong device, with both named."""
    refuse(name, Described(f"a tensor on {value.device}"), f"a tensor on {device}, where this Buffer's kernels run")
