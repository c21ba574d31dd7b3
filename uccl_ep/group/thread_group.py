"""Ranks as threads of one process: a group for tests, examples, and one GPU that plays several ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from uccl_ep.errors import PeerLost, PeerTimeout

T = TypeVar("T")

_EXCHANGE_TIMEOUT_S = 120.0


class _Shared:
    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size)
        self.slots: list[Any] = [None] * size


class ThreadGroup:
    """One rank's view of a group of threads. Has what Buffer asks of a group: rank, size, all_gather_object.

    Make one per rank with `ThreadGroup.create(n)`, or run a function on all of them with `run_ranks`.
    """

    def __init__(self, shared: _Shared, rank: int) -> None:
        self._shared = shared
        self._rank = rank

    @classmethod
    def create(cls, size: int) -> list[ThreadGroup]:
        """`size` connected views, one for each thread."""
        if size < 1:
            raise ValueError(f"size={size}: a group needs at least one rank")
        shared = _Shared(size)
        return [cls(shared, rank) for rank in range(size)]

    def rank(self) -> int:
        """This thread's rank, 0 to size() - 1."""
        return self._rank

    def size(self) -> int:
        """Number of ranks."""
        return self._shared.size

    def all_gather_object(self, value: Any) -> list[Any]:
        """Every rank's `value`, by rank. Collective.

        Raises:
            threading.BrokenBarrierError: another rank left the group by an exception, or did not come in time.
        """
        self._shared.slots[self._rank] = value
        self._shared.barrier.wait(_EXCHANGE_TIMEOUT_S)
        gathered = list(self._shared.slots)
        self._shared.barrier.wait(_EXCHANGE_TIMEOUT_S)  # nobody overwrites a slot that others still read
        return gathered

    def barrier(self) -> None:
        """Returns when every rank has called it. Collective."""
        self._shared.barrier.wait(_EXCHANGE_TIMEOUT_S)

    def leave(self) -> None:
        """Breaks the group's waits: what a rank calls that ends by an exception, so that the others do not wait."""
        self._shared.barrier.abort()


def run_ranks(size: int, body: Callable[[ThreadGroup], T]) -> list[T]:
    """Runs `body(group)` once per rank, each in its own thread, and returns the results by rank.

    Raises:
        Exception: the first rank's exception that is not the mere consequence of another's, with its rank in a note.
    """
    results: list[Any] = [None] * size
    errors: dict[int, BaseException] = {}

    def run(group: ThreadGroup) -> None:
        try:
            results[group.rank()] = body(group)
        except BaseException as error:  # noqa: BLE001 - handed to the caller below
            errors[group.rank()] = error
            group.leave()

    threads = [
        threading.Thread(target=run, args=(group,), name=f"rank-{group.rank()}") for group in ThreadGroup.create(size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        # A rank that ends by an exception is a lost peer to the others, whose errors would hide the cause.
        kinds = (threading.BrokenBarrierError, (PeerLost, PeerTimeout))
        rank, error = min(errors.items(), key=lambda item: (*(isinstance(item[1], kind) for kind in kinds), item[0]))
        error.args = (f"[rank {rank}] {error.args[0] if error.args else ''}", *error.args[1:])
        raise error
    return results
