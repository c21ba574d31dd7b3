"""Agreed values: all ranks that are left come to know the same of each other: who is left, and what each of them says.

Every agreement is one generation of agreement.py without a quorum, begun with whom each rank leaves out: suspects flood
until all who are left have confirmed the same set. So two ranks never go on with different sets, whatever fails
meanwhile: a rank that dies after it has told only some is suspected by all, or by none. A rank that the others have
agreed to leave out is told so. Every message carries the values that its sender knows, so whoever decides has those of
all who are left: it has heard each of them confirm, or one that had.

Agreements are numbered, and a number is used once. Masks (Buffer.agree_on_masks) are agreed on without a value; changes
of members (survival/standby.py) with three.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from uccl_ep.errors import PeerLost
from uccl_ep.membership.agreement import Agreement
from uccl_ep.membership.agreement_view import DECIDED, View, whole
from uccl_ep.membership.messenger import Message

MAX_TEXT = 500  # characters of a value
_KEPT = 6  # agreements whose decision is still answered: nobody is further behind, or it has been left out
_EARLY = 4  # messages of a rank about an agreement that this one has not begun, of the newest so many agreements

Value = int | str


class AgreedValues:
    """One rank's part, in one life after the other. AgreementService owns it and hands it what its messenger hears.

    Args:
        kind: of its messages. phase: what a rank that is left out was in, for its error.
        send: (rank, message) to a rank's messenger.

    Attributes:
        number: of the last agreement that this rank has taken part in or will; a rank that comes back takes it over.
    """

    def __init__(self, kind: str, phase: str, rank: int, num_ranks: int, send: Callable[[int, Message], None]) -> None:
        self._kind, self._phase = kind, phase
        self._rank, self._num_ranks, self._send = rank, num_ranks, send
        self._lock = threading.Lock()
        self._life = self.number = 0
        self._ahead: set[int] = set()  # numbers that were taken and whose agreement has not begun
        self._open: dict[int, Agreement] = {}
        self._early: dict[tuple[int, int], list[Message]] = {}  # by (number, rank)
        self._said: dict[int, dict[int, Value]] = {}  # by number and rank; never changed, but replaced
        self._settled: dict[int, set[int]] = {}  # who has decided or gone, by number
        self._closed = False

    def begin(self, life: int) -> None:
        """Another life of the Buffer: nothing of an earlier one counts."""
        with self._lock:
            self._life, self.number = life, 0
            for kept in (self._ahead, self._open, self._early, self._said, self._settled):
                kept.clear()

    def take_numbers(self, count: int) -> range:
        """The numbers of agreements to come, the same on all ranks that take theirs in the same order."""
        with self._lock:
            self.number += count
            taken = range(self.number - count + 1, self.number + 1)
            self._ahead |= set(taken)
            return taken

    def agree(
        self, masked: Collection[int], deadline_s: float, value: Value = 0, number: int | None = None
    ) -> dict[int, Value]:
        """The values of all that are left, by rank. Left are those that none of them leaves out, and that have neither
        ended nor failed to come within the deadline. Collective among them.

        Args:
            masked: whom this rank leaves out.
            value: what this rank says; a text may have MAX_TEXT characters.
            number: from take_numbers(); None: the next one.

        Raises:
            PeerLost: the others leave this rank out.
            InvalidArgument: it was closed meanwhile.
        """
        number = self.take_numbers(1)[0] if number is None else number
        one = Agreement(self._rank, self._num_ranks, None, lambda to, said: self._say(number, to, said))
        one.suspect(masked)
        with self._lock:
            self._learn(number, {self._rank: value})
            self._ahead.discard(number)
            self._open[number] = one
            for old in [n for n in self._open if n <= number - _KEPT]:
                for kept in (self._open, self._said, self._settled):
                    kept.pop(old, None)
            early = [(rank, said) for (at, rank), all_ in self._early.items() if at == number for said in all_]
            self._early = {key: said for key, said in self._early.items() if key[0] > number}
            if self._closed:
                one.end()
        for rank, said in early:
            self._hand(one, rank, said)
        try:
            left = one.agree((), deadline_s)
        except PeerLost as lost:
            lost.phase = self._phase
            raise
        with self._lock:
            said_by = self._said[number]
            return {rank: said_by[rank] for rank in left}

    def heard(self, number: int) -> dict[int, Value]:
        """The values of an agreement that have come so far, by rank, also before it has begun here."""
        return dict(self._said.get(number, {}))

    def decided_ahead(self) -> list[int]:
        """The numbers beyond this rank's that others have decided without it."""
        with self._lock:
            return [number for number, by in self._settled.items() if number > self.number and by]

    def late(self, number: int) -> frozenset[int]:
        """Who had not come to an agreement by this rank's deadline, and was not known to have gone."""
        with self._lock:
            one = self._open.get(number)
        return frozenset() if one is None else one.late

    def is_settled(self, number: int, ranks: Collection[int]) -> bool:
        """Whether these ranks need this one no more to decide: they have decided, or gone, or are this one."""
        with self._lock:
            return set(ranks) <= self._settled.get(number, set()) | {self._rank}

    def hear(self, rank: int, message: Message) -> None:
        """On the messenger's thread. Raises ValueError, TypeError or KeyError when no correct rank says that."""
        life, number = whole(message["life"]), whole(message["at"])
        view, _ = View.of(message, self._num_ranks)
        values = {whole(of): _value(value) for of, value in message["say"]}
        if any(of >= self._num_ranks for of in values):
            raise ValueError("no such rank")
        with self._lock:
            one = self._open.get(number)
            if life != self._life or (one is None and number <= self.number and number not in self._ahead):
                return
            self._learn(number, values)
            if view.phase == DECIDED:
                self._settled.setdefault(number, set()).add(rank)
            if one is None:
                self._early.setdefault((number, rank), []).append(message)
                del self._early[number, rank][:-_EARLY]
                self._forget_early()
                return
        self._hand(one, rank, message)

    def lose(self, rank: int) -> None:
        """A rank's listener refuses, or it is known to have gone otherwise."""
        with self._lock:
            open_ = list(self._open.values())
            for number in self._open:
                self._settled.setdefault(number, set()).add(rank)
        for one in open_:
            one.lose(rank)

    def close(self) -> None:
        """Ends every wait here."""
        with self._lock:
            self._closed = True
            open_ = list(self._open.values())
        for one in open_:
            one.end()

    def _learn(self, number: int, values: dict[int, Value]) -> None:
        """A rank's first word counts, and it says no other. Lock held."""
        self._said[number] = {**values, **self._said.get(number, {})}

    def _forget_early(self) -> None:
        """A rank that is left out hears of all agreements, and keeps the newest. Lock held."""
        newest = sorted({at for at, _ in self._early})[-_EARLY:]
        self._early = {key: said for key, said in self._early.items() if key[0] in newest}
        for kept in (self._said, self._settled):
            for number in [n for n in kept if n > self.number and n not in newest]:
                kept.pop(number, None)

    def _say(self, number: int, to: int, said: Message) -> None:
        say = sorted(self._said.get(number, {}).items())  # without the lock: the agreement's own is held
        self._send(to, {**said, "k": self._kind, "life": self._life, "at": number, "say": say})

    def _hand(self, one: Agreement, rank: int, message: Message) -> None:
        view, _ = View.of(message, self._num_ranks)
        one.hear(rank, 1, view)


def _value(value: object) -> Value:
    if isinstance(value, str):
        if len(value) > MAX_TEXT:
            raise ValueError("no value")
        return value
    return whole(value)
