"""Returns: two ranks, one of which left the other out for some calls, take up where both know to be.

Each tells the other how far it is with its calls (an *offer*, whose receipt is acknowledged), makes up for what it
missed, and says when it expects the other's next call (*ready*, which names the other's offer). A pair is together
again when each has the other's offer and has heard that the other is ready for its own. A newer offer of a rank
replaces its older one, and whoever gives up forgets its own: what answers it then comes too late, and counts for
nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from uccl_ep.membership.agreement_view import whole
from uccl_ep.membership.messenger import Message

_MOST_COUNTS = 32


@dataclass(frozen=True)
class Offer:
    """How far a rank is (`counts`, which mean nothing here), and which ranks it goes on with, itself included."""

    number: int
    counts: tuple[int, ...]
    company: frozenset[int]


class Returns:
    """One rank's part, in one life after the other. AgreementService owns it and hands it what its messenger hears.

    Args:
        changed: guards all of it, and wakes who waits.
        send: (rank, message) to a rank's messenger.

    Attributes:
        heard: the newest offer of each rank that made one and is not together with this rank yet.
        news: how much was heard so far.
    """

    def __init__(
        self, rank: int, num_ranks: int, changed: threading.Condition, send: Callable[[int, Message], None]
    ) -> None:
        self._rank, self._num_ranks = rank, num_ranks
        self._changed, self._send = changed, send
        self._life = self._number = self.news = 0
        self.heard: dict[int, Offer] = {}
        self._mine: dict[int, Offer] = {}
        self._taken: dict[int, int] = {}  # this rank's offer that each has heard
        self._ready_for: dict[int, int] = {}  # the offer of each rank for which this one is ready
        self._ready: dict[int, tuple[int, int]] = {}  # said last by each: its offer, and this rank's

    def begin(self, life: int) -> None:
        """Another life of the Buffer: nothing of an earlier one counts."""
        with self._changed:
            self._life = life
            for said in (self.heard, self._mine, self._taken, self._ready_for, self._ready):
                said.clear()

    def offer(self, rank: int, counts: tuple[int, ...], company: frozenset[int]) -> None:
        """Tells a rank how far this one is, unless it was told so last, with no less company: who has met this one may
        not be there any more to answer."""
        with self._changed:
            known = self._mine.get(rank)
            if known is not None and known.counts == counts and company <= known.company:
                return
            self._number += 1
            self._mine[rank] = Offer(self._number, counts, company)
            self._ready_for.pop(rank, None)
            message = self._message(self._number, counts=list(counts), with_=sorted(company))
        self._send(rank, message)

    def say_ready(self, rank: int, offer: Offer) -> None:
        """Tells a rank that this one is where `offer`, its newest, says, and expects its next call."""
        with self._changed:
            mine = self._mine[rank]
            self._ready_for[rank] = offer.number
            message = self._message(mine.number, of=offer.number)
        self._send(rank, message)

    def is_ready_for(self, rank: int) -> bool:
        """Whether say_ready was called for the rank's newest offer, and for this rank's newest one."""
        with self._changed:
            return rank in self.heard and self._ready_for.get(rank) == self.heard[rank].number

    def is_heard(self, rank: int) -> bool:
        """Whether the rank's messenger has this rank's newest offer, whatever the rank itself does."""
        with self._changed:
            return rank in self._mine and self._taken.get(rank) == self._mine[rank].number

    def together(self, rank: int) -> bool:
        """Whether both ranks are ready for each other's newest offer."""
        with self._changed:
            if rank not in self._mine or rank not in self.heard:
                return False
            pair = self.heard[rank].number, self._mine[rank].number
            return self._ready_for.get(rank) == pair[0] and self._ready.get(rank) == pair

    def forget(self, rank: int) -> None:
        """A return is over, or given up: both offers count for nothing any more."""
        with self._changed:
            for said in (self.heard, self._mine, self._taken, self._ready_for, self._ready):
                said.pop(rank, None)

    def wait(self, news: int, deadline: float) -> bool:
        """Returns when more was heard than `news`, or False at `deadline` (time.monotonic)."""
        with self._changed:
            while self.news == news:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
            return True

    def hear(self, rank: int, message: Message) -> None:
        """On the messenger's thread. Raises ValueError, TypeError or KeyError when no correct rank says that."""
        life, number = whole(message["life"]), whole(message["i"])
        with self._changed:
            if life != self._life:
                return
            if "heard" in message:
                self._taken[rank] = number
            elif "of" in message:
                self._ready[rank] = number, whole(message["of"])
            else:
                counts, company = [whole(n) for n in message["counts"]], [whole(r) for r in message["with"]]
                if len(counts) > _MOST_COUNTS or any(r >= self._num_ranks for r in company):
                    raise ValueError("no offer")
                self.heard[rank] = Offer(number, tuple(counts), frozenset(company))
                self._send(rank, self._message(number, heard=True))
            self.news += 1
            self._changed.notify_all()

    def _message(self, number: int, **said: object) -> Message:
        return {"k": "returns", "g": 0, "life": self._life, "i": number} | {k.rstrip("_"): v for k, v in said.items()}
