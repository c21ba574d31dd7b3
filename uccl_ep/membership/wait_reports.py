"""Wait reports: before anything is agreed, each rank tells all others which rank it has waited for in vain.

A wait names the rank it was for, but that rank may itself have waited, for a third one, and its own wait may expire
later: it began later, or its machine is busy. So a rank that receives a wait report answers at once that it is alive;
its messenger's thread does so, whatever its kernels do. A rank that is alive then gets time to report whom *it* waits
for. A rank that is stopped or cut off does not answer, and gets no time. Where the reports form a circle, the rank that
did not answer is named.

A rank that leaves by an error of its own says by which: whoever loses it need not look for its log.
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
class WaitReport:
    """A rank's wait has expired: `peer` is the rank that it waited for (-1: it does not know), `reason` says where."""

    peer: int
    reason: str


class WaitReports:
    """One rank's part. AgreementService owns it, numbers its groups, and hands it what its messenger hears.

    Args:
        changed: guards all of it, and wakes who waits.
        send: (rank, message) to a rank's messenger.
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
        self._said: dict[int, WaitReport] = {}  # by others, since the last decision
        self._alive: set[int] = set()  # who has answered since
        self._left: dict[int, str] = {}  # by which error

    def forget(self) -> None:
        """Another group begins. Lock held."""
        self._said.clear()
        self._alive.clear()

    def report_wait(self, generation: int, peer: int, reason: str) -> None:
        """Tells all others which rank this one has waited for in vain, or lost: they may be waiting for this one."""
        for rank in range(self._num_ranks):
            if rank != self._rank:
                self._send(rank, {"k": "waits", "g": generation, "who": peer + 1, "why": reason[:_MAX_REASON]})

    def report_error(self, generation: int, error: str) -> None:
        """Tells all others by which error this rank leaves."""
        for rank in range(self._num_ranks):
            if rank != self._rank:
                self._send(rank, {"k": "leaves", "g": generation, "why": error[:_MAX_REASON]})

    def error_of(self, rank: int) -> str:
        """By which error a rank has said that it leaves; empty: it has not."""
        with self._changed:
            return self._left.get(rank, "")

    def hear(self, rank: int, generation: int, message: Message, current: bool) -> None:
        """A wait report, the answer to one, or the error by which a rank leaves. Raises ValueError or KeyError when no
        correct rank says that.

        Args:
            current: it is of this group, from a member.
        """
        if message["k"] == "alive":
            with self._changed:
                if current:
                    self._alive.add(rank)
                    self._changed.notify_all()
            return
        reason = message["why"]
        if not isinstance(reason, str) or len(reason) > _MAX_REASON:
            raise ValueError("no reason")
        if message["k"] == "leaves":
            with self._changed:
                self._left[rank] = reason
            return
        who = message["who"]
        if type(who) is not int or not 0 <= who <= self._num_ranks:
            raise ValueError("no such rank")
        if not current:
            return
        self._send(rank, {"k": "alive", "g": generation})
        with self._changed:
            self._said.setdefault(rank, WaitReport(who - 1, reason))
            self._changed.notify_all()

    def wait(self, of: int | None, grace_s: float) -> dict[int, WaitReport]:
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

    def follow(self, waited_for: int, grace_s: float, patience_s: float) -> dict[int, WaitReport]:
        """What the others have said, by rank, when it is clear whom `waited_for` waits for: `grace_s` seconds from now;
        or, if it has answered that it is alive, `grace_s` after its own word, for which it gets `patience_s`."""
        began = time.monotonic()
        spoke = None
        with self._changed:
            while not self._over(None):
                now = time.monotonic()
                if spoke is None and waited_for in self._said:
                    spoke = now
                waits = waited_for in self._alive and spoke is None and not self._over(waited_for)
                until = began + patience_s if waits else max(began, spoke or began) + grace_s
                if now >= until:
                    break
                self._changed.wait(min(until - now, POLL_S))
            return dict(self._said)

    def silent(self) -> set[int]:
        """Other ranks that have neither reported a wait nor answered a wait report since the last decision."""
        with self._changed:
            return set(range(self._num_ranks)) - {self._rank} - self._said.keys() - self._alive
