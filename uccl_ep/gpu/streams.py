"""Ordering on a GPU: which stream a call's kernels run on, what they wait for, and who waits for them.

Kernels of one Buffer never overlap: each launch reads counters that the one before it has moved on. So a call on
another stream than the last one's waits for that one's end. Inside a graph capture only events of that capture can be
waited for; work of before is ordered by the stream that the graph is replayed on.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from uccl_ep import _native
from uccl_ep.device import protocol
from uccl_ep.errors import InvalidArgument
from uccl_ep.gpu.driver import Driver

_COMM_STREAM_TRIES = 256  # torch hands out the streams of a pool of 32 in turn
_IN_PLACE = nullcontext()  # where a call's tensors come from the caller's stream
_QUEUES = {"cuda": ("CUDA_DEVICE_MAX_CONNECTIONS", 8, 32), "hip": ("GPU_MAX_HW_QUEUES", 4, 32)}  # default, most


class StreamPoint:
    """A point in a GPU stream's work, as EventHandle has it.

    Args:
        captured: whether the stream is being captured, where that is known already.
    """

    def __init__(self, driver: Driver, stream: Any, captured: bool | None = None) -> None:
        self.driver, self.stream = driver, stream
        self.captured = driver.capturing(stream) if captured is None else captured
        self.event = driver.record(stream)

    def wait(self, timeout_ns: int = 0) -> bool:
        """Makes the calling thread's current stream wait; the thread does not."""
        self.hold_back(self.driver.current_stream())
        return True

    def query(self) -> bool:
        """Whether the point has been reached; True for one inside a graph, which has no time of its own."""
        return self.captured or self.driver.query(self.event)

    def synchronize(self) -> None:
        """Blocks the calling thread."""
        if not self.captured:
            self.driver.synchronize(self.event)

    def hold_back(self, stream: Any, capturing: bool | None = None) -> None:
        """Makes a stream wait, where that means something (see the top of this file).

        Args:
            capturing: whether the stream is being captured, where that is known already.
        """
        if self.usable_in(stream, capturing):
            self.driver.wait(stream, self.event)

    def usable_in(self, stream: Any, capturing: bool | None = None) -> bool:
        """Whether a stream can wait for this point."""
        if not self.captured:
            return not (self.driver.capturing(stream) if capturing is None else capturing)
        return self.driver.capturing(self.stream)  # its capture still goes on; waiting takes `stream` into it


class StreamClaims:
    """Which ranks of this process use which streams. Thread-safe.

    Kernels of different ranks wait for each other, so two ranks on one stream, whose kernels run one after the other,
    would wait for ever.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._claims: dict[int, dict[int, tuple[int, int]]] = {}  # stream key -> {claimant: (session, rank)}

    def claim(self, key: int, claimant: int, owner: tuple[int, int]) -> None:
        """Notes that rank owner[1] of session owner[0] uses a stream.

        Raises:
            InvalidArgument: another rank of that session does.
        """
        with self._lock:
            users = self._claims.setdefault(key, {})
            for session, rank in users.values():
                if session == owner[0] and rank != owner[1]:
                    raise InvalidArgument(
                        f"rank {owner[1]} calls on a stream that rank {rank} of the same process calls on too"
                        + (" (the default stream)" if key == 0 else "")
                        + ": a stream runs one kernel after the other, and kernels of two ranks wait for each other. "
                        "Give each rank's thread a stream of its own: with torch.cuda.stream(torch.cuda.Stream()): ..."
                    )
            users[claimant] = owner

    def unused_stream(self, driver: Driver, claimant: int, owner: tuple[int, int]) -> Any:
        """A new stream that no rank of the process uses yet, claimed.

        Raises:
            InvalidArgument: all that the driver gives are in use.
        """
        for _ in range(_COMM_STREAM_TRIES):
            stream = driver.new_stream()
            key = driver.stream_key(stream)
            with self._lock:
                if not self._claims.get(key):
                    self._claims[key] = {claimant: owner}
                    return stream
        raise InvalidArgument("every stream that torch gives is in use by a rank of this process: use fewer Buffers")

    def release(self, claimant: int) -> None:
        """Drops every claim of one claimant."""
        with self._lock:
            for key in [key for key, users in self._claims.items() if users.pop(claimant, None) and not users]:
                del self._claims[key]


claims = StreamClaims()


class Neighbours:
    """The Buffers of one rank on one GPU. Thread-safe.

    A low-latency kernel takes all processors of the rank's share, and its blocks wait for each other. Two of them that
    are placed at once may each have half of their blocks, and no room for the rest. So those of one rank run one after
    the other, in the order of its calls, whatever Buffers and streams they are of.

    Attributes:
        alone: there is one Buffer, whose own calls are in order anyway.
        lock: held while a kernel finds its place in the order, until it is launched.
    """

    def __init__(self) -> None:
        self.alone, self.lock = True, threading.Lock()
        self._members: weakref.WeakSet[CallOrder] = weakref.WeakSet()
        self._last: weakref.ref[CallOrder] | None = None  # whose kernel was launched last

    def enter(self, order: CallOrder) -> None:
        """One Buffer more."""
        with self.lock:
            if self.alone:
                self._last = next(map(weakref.ref, self._members), None)
            self._members.add(order)
            self.alone = len(self._members) == 1

    def leave(self, order: CallOrder) -> None:
        """One less; its kernels have run."""
        with self.lock:
            self._members.discard(order)
            self.alone = len(self._members) == 1

    def pass_on(self, order: CallOrder) -> CallOrder | None:
        """The Buffer that launched last; `order` is the next. With the lock held."""
        before, self._last = self._last, weakref.ref(order)
        return None if before is None else before()


_neighbours: weakref.WeakValueDictionary[tuple[int, int], Neighbours] = weakref.WeakValueDictionary()
_neighbours_lock = threading.Lock()


def neighbours_of(driver: Driver, threads: int) -> Neighbours:
    """Those of the calling thread's rank, of the `threads` ranks of this process on a GPU."""
    with _neighbours_lock:
        key = id(driver), 0 if threads == 1 else threading.get_ident()
        return _neighbours.setdefault(key, Neighbours())


class CallOrder:
    """The order of one Buffer's calls. Used by one thread at a time, as the Buffer is.

    The driver is asked once a call which stream is current, and whether that is being captured; `begin` asks.

    Attributes:
        neighbours: this Buffer and its rank's others.
        comm_stream: of the Buffer alone.
        caller_key: key of the stream that was current when the call at hand began.
        captured: the call at hand is recorded into a graph.
        open: kernels were launched whose end is not marked.
    """

    def __init__(self, driver: Driver, owner: tuple[int, int], threads: int = 1) -> None:
        self._driver, self._owner, self._claimant = driver, owner, id(self)
        self.neighbours = neighbours_of(driver, threads)
        self.neighbours.enter(self)
        self.comm_stream = claims.unused_stream(driver, self._claimant, owner)
        weakref.finalize(self, claims.release, self._claimant)
        self._comm_key = driver.stream_key(self.comm_stream)
        self._claimed = {self._comm_key}  # streams that nobody else of the session can claim any more
        self._caller: Any = None
        self.caller_key = 0
        self._stream, self._key = self.comm_stream, self._comm_key
        self.captured = False
        self._joined = True  # the launch stream is behind what the caller has queued
        self._inside = False  # the call's tensors come from the comm stream
        self._ordered = False  # ... and behind this Buffer's last call
        self.open = False
        self._last: StreamPoint | None = None  # the end of the last call's kernels
        self._last_key = 0  # of its stream

    def begin(self, on_caller: bool = False) -> int:
        """Starts a call on the comm stream, or on the caller's, behind what that has queued; returns `caller_key`.

        Raises:
            InvalidArgument: another rank uses the caller's stream.
        """
        if self.open:  # a call that ended by an exception
            self._mark(self._driver.capturing(self._stream))
        self._caller, self.caller_key, self.captured = self._driver.here()
        if self.caller_key not in self._claimed:
            claims.claim(self.caller_key, self._claimant, self._owner)
            self._claimed.add(self.caller_key)
        if on_caller:
            self._stream, self._key = self._caller, self.caller_key
        else:
            self._stream, self._key = self.comm_stream, self._comm_key
        self._joined, self._inside, self._ordered = on_caller, False, False
        return self.caller_key

    def behind(self, previous: Any) -> AbstractContextManager[Any]:
        """Starts a call on the comm stream that waits for an event instead of the caller's stream (None: for that).

        In a capture, an event of before it would leave the comm stream outside: then the caller's stream is waited for.
        """
        self.begin(False)
        if previous is None:
            return _IN_PLACE
        point = previous.native if isinstance(previous, protocol.EventHandle) else previous
        if isinstance(point, StreamPoint):
            if not (point.usable_in(self.comm_stream) and point.captured == self.captured):
                point = None
        elif isinstance(point, _native.Event):
            point.wait((1 << 63) - 1)  # of a CPU's stream
            point = None
        if point is None:
            return _IN_PLACE
        self._driver.wait(self.comm_stream, point.event if isinstance(point, StreamPoint) else point)
        self._joined = self._inside = True
        return self._driver.on(self.comm_stream)

    def touched(self) -> None:
        """The call has queued something else (a fill) where its tensors come from."""
        self._joined = self._inside or self._key == self.caller_key

    def launch_stream(self) -> Any:
        """Where to launch the call's next kernel; all that it must wait for is arranged."""
        if not self._joined:
            self._driver.wait(self._stream, self._driver.record(self._caller))
            self._joined = True
        if not self._ordered:
            self._ordered = True
            if self._last is not None and self._last_key != self._key:
                self._last.hold_back(self._stream, self.captured)
        self.open = True
        return self._stream

    def behind_neighbours(self) -> Any:
        """launch_stream() for a kernel that takes all processors of the rank's share: behind its other Buffers' last.

        With `neighbours.lock` held, until it is launched.
        """
        stream, last = self.launch_stream(), self.neighbours.pass_on(self)
        if last is not None and last is not self and last._key != self._key and last.captured == self.captured:
            point = StreamPoint(self._driver, last._stream, self.captured) if last.open else last._last
            if point is not None:
                point.hold_back(stream, self.captured)
        return stream

    def _mark(self, captured: bool) -> StreamPoint:
        self.open = False
        self._last, self._last_key = StreamPoint(self._driver, self._stream, captured), self._key
        return self._last

    def record(self, held: object) -> StreamPoint:
        """Ends a call asynchronously."""
        point = self._mark(self.captured)
        for tensor in tensors_in(held):
            self._driver.use_on(tensor, self._stream)
            if self._inside:
                self._driver.use_on(tensor, self._caller)
        return point

    def end(self, held: object = None, sent_on: int | None = None) -> None:
        """Ends a call: the caller's stream goes on behind it.

        Args:
            held: the tensors that its kernels use. Memory that was taken on the caller's stream needs no word about a
                call after which that stream goes on.
            sent_on: `caller_key` of the call whose other half this is; None: it is none.
        """
        self.open = False
        self._last, self._last_key = StreamPoint(self._driver, self._stream, self.captured), self._key
        if self._key == self.caller_key:
            if sent_on is not None and sent_on != self._key:  # memory was taken on that other stream
                for tensor in tensors_in(held):
                    self._driver.use_on(tensor, self._stream)
            return
        self._driver.wait(self._caller, self._last.event)
        if self._inside:
            for tensor in tensors_in(held):
                self._driver.use_on(tensor, self._caller)

    def finish(self) -> None:
        """Blocks the thread until the call's kernels have run; the caller's stream goes on behind them."""
        point = self._mark(self.captured)
        if self._key != self.caller_key:
            self._driver.wait(self._caller, point.event)
        point.synchronize()

    def catch_up(self) -> None:
        """The caller's current stream goes on behind every call so far."""
        if self.open:
            self._mark(self._driver.capturing(self._stream))
        if self._last is not None:
            self._last.wait()

    def close(self) -> None:
        """Waits for every call, and for what the caller has queued (a replay, perhaps); gives the streams back."""
        try:
            if self._last is not None:
                self._last.synchronize()
            for stream in (self.comm_stream, self._driver.current_stream()):
                StreamPoint(self._driver, stream).synchronize()
        finally:
            claims.release(self._claimant)
            self.neighbours.leave(self)


def tensors_in(held: object) -> list[torch.Tensor]:
    """The tensors of a tuple or list that may hold other things too."""
    if isinstance(held, torch.Tensor):
        return [held]
    found: list[torch.Tensor] = []
    if isinstance(held, (tuple, list)):
        for item in held:
            if item is not None:
                found += [item] if type(item) is torch.Tensor else tensors_in(item)
    return found


def check_queues(kind: str, ranks: int, environment: Mapping[str, str]) -> None:
    """Refuses more ranks of one process on one GPU than it has hardware queues for: two streams each.

    Streams that share a queue wait for each other's kernels, and kernels of two ranks wait for each other.

    Raises:
        InvalidArgument: with the variable to set before the GPU is first used.
    """
    variable, default, most = _QUEUES[kind]
    text = environment.get(variable, "")
    queues = int(text) if text.isdecimal() else default
    if ranks > 1 and 2 * ranks > queues:
        raise InvalidArgument(
            f"{ranks} ranks of one process share a GPU: their {2 * ranks} streams need as many hardware queues, and "
            f"{variable} allows {queues}. Set {variable}={min(most, max(2 * ranks, queues))} before the process first "
            f"uses the GPU (at most {most}: {most // 2} ranks)."
        )


_current = threading.local()
_opened: list[Driver] = []
_opened_lock = threading.Lock()


def _driver_here() -> Driver | None:
    """The GPU whose current stream is meant: torch's current device, else that of this thread's last Buffer."""
    with _opened_lock:
        if torch.cuda.is_available():
            ordinal = torch.cuda.current_device()
            for driver in _opened:
                if driver.torch_device.index == ordinal:
                    return driver
        mine: Driver | None = getattr(_current, "driver", None)
        return mine if mine in _opened else _opened[-1] if _opened else None


def _record_current() -> protocol.Point:
    driver = _driver_here()
    return _native.Event() if driver is None else StreamPoint(driver, driver.current_stream())


def enter_process(driver: Driver) -> Callable[[], None]:
    """From now on EventHandle() records this thread's current GPU stream. Returns what ends that, idempotent."""
    _current.driver = driver
    with _opened_lock:
        if not _opened:
            protocol.current_point.append(_record_current)
        _opened.append(driver)
    left = [False]

    def leave() -> None:
        with _opened_lock:
            if left[0]:
                return
            left[0] = True
            _opened.remove(driver)
            if not _opened:
                protocol.current_point.remove(_record_current)

    return leave
