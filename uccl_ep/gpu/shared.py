"""Memory of ranks that outlives its owner: what threads of this process share, and what other processes have open."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from uccl_ep import _native
from uccl_ep.group.handshake import Endpoints
from uccl_ep.layout.plan import MemoryPlan


class Shared:
    """Memory with an address for kernels that several ranks of this process use; given back by the last of them.

    So a rank may be destroyed while kernels of another rank of the process still look at its words.
    """

    _lock = threading.Lock()

    def __init__(self, address: int, give_back: Callable[[], None]) -> None:
        self.address = address
        self._give_back = give_back
        self.absent = False  # nothing is there: its owner has given it back for a while
        self._users = 1

    def hold(self) -> Shared:
        """One more user, beside those that there are."""
        with self._lock:
            assert self._users > 0, "memory that has been given back"
            self._users += 1
        return self

    def drop(self) -> None:
        """One user less."""
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last and not self.absent:
            self._give_back()


class Parked:
    """Rows of a destroyed Buffer that other processes have open: freeing them under their kernels is undefined."""

    def __init__(self, rows: Shared, control: Any, plan: MemoryPlan, others: Sequence[Endpoints]) -> None:
        self.rows, self._control, self._plan, self._others = rows, control, plan, others

    def in_use(self) -> bool:
        """Some process that has them open has neither left nor ended."""
        words = memoryview(self._control.numpy()).cast("Q")
        return any(
            words[self._plan.control.departed(m.rank) // 8] < _native.DEPARTED_LEFT
            and os.path.exists(f"/proc/{m.segment_pid}")
            for m in self._others
        )


_parked: list[Parked] = []
_parked_lock = threading.Lock()


def park(rows: Parked) -> None:
    """Keeps rows until nobody has them open any more."""
    with _parked_lock:
        _parked.append(rows)


def sweep() -> int:
    """Frees parked rows that nobody uses any more; returns how many are left. Whenever a Buffer is made or ends."""
    with _parked_lock:
        free = [rows for rows in _parked if not rows.in_use()]
        _parked[:] = [rows for rows in _parked if rows not in free]
        left = len(_parked)
    for rows in free:
        rows.rows.drop()
    return left


def run_all(endings: Sequence[Callable[[], None]]) -> None:
    """All of them, whatever one raises; then the first error."""
    errors = []
    for ending in endings:
        try:
            ending()
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
