"""A recorded graph of the fake GPU: launches with the bytes they had, events and waits, and torch's own operations.

As strict as CUDA: a stream takes part by waiting for an event of the capture, must be waited for before the end, and
nothing outside can be waited for. Replays run every stream on a thread of its own, so a dependency that was not
recorded is a race.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from uccl_ep import UcclEpError

_HOST_WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero")


class FakeGraph:
    """Items in the order they were recorded; `num_launches` of them are kernels."""

    def __init__(self, origin: Any, current: Callable[[], Any], executor: Any) -> None:
        self.origin, self.current, self._executor = origin, current, executor
        self.ended = False
        self.num_launches = 0
        self._streams = [origin]
        self._items: list[tuple[Any, ...]] = []
        self._known: dict[int, dict[int, int]] = {origin.key: {}}  # per stream: last item of each stream it is behind
        self._records: list[dict[int, int]] = []
        self._private: dict[int, Any] = {}

    def _add(self, stream: Any, kind: str, *rest: Any) -> None:
        self._known[stream.key][stream.key] = len(self._items)
        self._items.append((kind, stream.key, *rest))

    def add_launch(self, stream: Any, name: str, args: bytes, blocks: int, warps: int) -> None:
        """A kernel."""
        self.num_launches += 1
        self._add(stream, "launch", name, args, blocks, warps)

    def add_record(self, stream: Any) -> int:
        """An event; returns its number."""
        self._add(stream, "record", len(self._records))
        self._records.append(dict(self._known[stream.key]))
        return len(self._records) - 1

    def add_wait(self, stream: Any, number: int) -> None:
        """A wait for an event, by which the stream joins."""
        if stream.graph is None:
            stream.graph = self
            self._streams.append(stream)
            self._known[stream.key] = {}
        known = self._known[stream.key]
        for key, item in self._records[number].items():
            known[key] = max(known.get(key, -1), item)
        self._add(stream, "wait", number)

    def add_torch(self, call: tuple[Any, ...]) -> None:
        """An operation of torch on the current stream."""
        self._add(self.current(), "torch", *call)

    def end(self) -> None:
        """The capture is over.

        Raises:
            UcclEpError: a stream's work is not waited for.
        """
        self.ended = True
        for stream in self._streams:
            stream.graph = None
        behind = self._known[self.origin.key]
        for index, (kind, key, *_) in enumerate(self._items):
            if kind == "launch" and index > behind.get(key, -1) and key != self.origin.key:
                raise UcclEpError("a capture ended before its first stream waited for another one's work")

    def replay(self, stream: Any) -> None:
        """Queues everything; blocks only for torch's operations."""
        events: dict[int, Any] = {}

        def native(key: int) -> Any:
            if key == self.origin.key:
                return stream.native
            if key not in self._private:
                self._private[key] = self._executor.queue()
            return self._private[key]

        for kind, key, *rest in self._items:
            queue = native(key)
            if kind == "launch":
                self._executor.launch(queue, *rest)
            elif kind == "record":
                events[rest[0]] = queue.record()
            elif kind == "wait":
                queue.wait(events[rest[0]])
            else:
                queue.synchronize()
                _again(*rest)


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Records what torch does while a graph is captured, and keeps its results, as a graph's memory pool does."""

    def __init__(self, graph: FakeGraph) -> None:
        super().__init__()
        self._graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        if name in _HOST_WAITS:
            raise UcclEpError(f"{name}: reading a tensor on the host is not permitted while this thread captures")
        result = func(*args, **(kwargs or {}))
        self._graph.add_torch((func, args, kwargs or {}, result))
        return result


class Retainer(TorchDispatchMode):  # type: ignore[misc]
    """Keeps what torch makes until `let_go`, as memory that a GPU's allocator takes back is not given out before the
    stream that it was allocated on has come by. `memory` is told where it lies (HostExecutor.memory)."""

    def __init__(self, memory: Callable[[int, int, str], None]) -> None:
        super().__init__()
        self._results: list[Any] = []
        self._memory = memory

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._results.append(result)
        if not any(r.alias_info is not None for r in func._schema.returns) and func.__name__ != "detach.default":
            for made in _tensors(result if isinstance(result, (list, tuple)) else (result,)):
                storage = made.untyped_storage()
                self._memory(storage.data_ptr(), storage.nbytes(), "tensor")
        return result

    def let_go(self) -> None:
        """The stream has come by: what nobody refers to any more may be reused. The rest may be given to a kernel and
        then dropped, and is looked at again the next time."""
        results, self._results = self._results, []
        while results:
            result = results.pop()
            if sys.getrefcount(result) > 2:  # this name and the argument
                self._results.append(result)


def _again(func: Any, args: Any, kwargs: Any, result: Any) -> None:
    """Does an operation again, into the same memory."""
    name = func.__name__.split(".")[0]
    if func._schema.is_mutable:
        if name != "set_":
            func(*args, **kwargs)
        return
    view = any(r.alias_info is not None for r in func._schema.returns) or name == "detach"
    if isinstance(result, torch.Tensor) and not view and not name.startswith("empty"):
        made = func(*args, **kwargs)
        if made.untyped_storage().data_ptr() not in {a.untyped_storage().data_ptr() for a in _tensors(args)}:
            result.copy_(made)


def _tensors(args: Any) -> list[torch.Tensor]:
    return [a for a in args if isinstance(a, torch.Tensor)]
