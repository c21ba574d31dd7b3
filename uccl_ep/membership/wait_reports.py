"""What ranks tell each other before anything is agreed: whom each of them has waited for in vain.

A wait names the rank it was for, but that rank may itself have waited, for another one, and its own wait may end later:
it began later, or the host is busy. So who hears of an accusation answers at once that it is alive (on the
switchboard's thread, whatever its kernels do). The accused is then given time to say whom *it* waits for; a rank that
is stopped, or cut off, answers nothing and is given none. Where ranks accuse each other in a circle, who answered
nothing is left to name.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from uccl_ep.membership.messenger import Message

POLL_S = 0.05  # of what nobody tells: that a process has ended
_MAX_REASON = 2000  # characters


@dataclass(frozen=True)
class Accusation:
    """What a rank said when something of its own failed: the rank it was about (-1: it does not know), and words."""

    peer: int
    reason: str


class Accusations:
    """One rank's part. RollCall owns it, numbers its groups, and hands it what its switchboard hears.

    Args:
        changed: guards all of it, and wakes who waits.
        send: (rank, message) to a rank's switchboard.
        over: (rank) whether nothing more can come from it, or from anybody.
    """

    def __init__(
        self,
        rank: int,
        num_ranks: int,
        changed: threading.Condition,
        send: Callable[[int, Message], None],
        over: Callable[[int | None], bool],
    ) -> None:
        self._rank, self._num_ranks = rank, num_ranks
        self._changed, self._send, self._over = changed, send, over
        self._said: dict[int, Accusation] = {}  # by others, since the last decision
        self._alive: set[int] = set()  # who has answered since

    def forget(self) -> None:
        """Another group begins. Lock held."""
        self._said.clear()
        self._alive.clear()

    def accuse(self, generation: int, peer: int, reason: str) -> None:
        """Tells all others whom this rank has waited for in vain, or lost: they may be waiting for this rank."""
        for rank in range(self._num_ranks):
            if rank != self._rank:
                self._send(rank, {"k": "accuse", "g": generation, "who": peer + 1, "why": reason[:_MAX_REASON]})

    def hear(self, rank: int, generation: int, message: Message, current: bool) -> None:
        """An accusation, or the answer to one. Raises ValueError or KeyError when no correct rank says that.

        Args:
            current: it is of this group, from a member.
        """
        if message["k"] == "alive":
            with self._changed:
                if current:
                    self._alive.add(rank)
                    self._changed.notify_all()
            return
        who, reason = message["who"], message["why"]
        if type(who) is not int or not 0 <= who <= self._num_ranks:
            raise ValueError("no such rank")
        if not isinstance(reason, str) or len(reason) > _MAX_REASON:
            raise ValueError("no accusation")
        if not current:
            return
        self._send(rank, {"k": "alive", "g": generation})
        with self._changed:
            self._said.setdefault(rank, Accusation(who - 1, reason))
            self._changed.notify_all()

    def wait(self, of: int | None, grace_s: float) -> dict[int, Accusation]:
        """What the others have said, by rank, after `grace_s` seconds; sooner when rank `of` has said something, or
        nothing more can come from it."""
        until = time.monotonic() + grace_s
        with self._changed:
            while of not in self._said and not self._over(of):
                left = until - time.monotonic()
                if left <= 0.0:
                    break
                self._changed.wait(min(left, POLL_S))
            return dict(self._said)

    def follow(self, accused: int, grace_s: float, patience_s: float) -> dict[int, Accusation]:
        """What the others have said, by rank, when it is clear whom `accused` waits for: `grace_s` seconds from now;
        or, if it has answered that it is alive, `grace_s` after its own word, for which it gets `patience_s`."""
        began = time.monotonic()
        spoke = None
        with self._changed:
            while not self._over(None):
                now = time.monotonic()
                if spoke is None and accused in self._said:
                    spoke = now
                waits = accused in self._alive and spoke is None and not self._over(accused)
                until = began + patience_s if waits else max(began, spoke or began) + grace_s
                if now >= until:
                    break
                self._changed.wait(min(until - now, POLL_S))
            return dict(self._said)

    def silent(self) -> set[int]:
        """Other ranks that have neither accused anybody nor answered an accusation since the last decision."""
        with self._changed:
            return set(range(self._num_ranks)) - {self._rank} - self._said.keys() - self._alive
