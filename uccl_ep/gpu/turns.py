"""Which Buffers of a rank take turns on its GPU: their low-latency kernels must not be placed at once."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from uccl_ep.gpu.driver import Driver

if TYPE_CHECKING:
    from uccl_ep.gpu.streams import CallOrder


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
