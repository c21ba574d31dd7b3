"""Agreed masks: ranks that leave others out, each by its own observation, come to leave out the same ones.

Every agreement is one generation of agreement.py without a quorum, begun with whom each rank masks: suspects flood
until all who are left have confirmed the same set. So two ranks never go on with different masks, whatever fails
meanwhile: a rank that dies after it has told only some is suspected by all, or by none. A rank that the others have
agreed to leave out is told so. Agreements are numbered, and a number is used once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from uccl_ep.errors import PeerLost
from uccl_ep.membership.agreement import Agreement
from uccl_ep.membership.agreement_view import View, whole
from uccl_ep.membership.messenger import Message

PHASE = "agreed masks"
_KEPT = 2  # agreements whose decision is still answered: nobody is further behind, or it has been left out
_EARLY = 4  # messages of a rank about an agreement that this one has not begun, of the newest so many agreements


class AgreedMasks:
    """One rank's part, in one life after the other. AgreementService owns it and hands it what its messenger hears.

    Args:
        send: (rank, message) to a rank's messenger.

    Attributes:
        number: of the last agreement, which a rank that comes back takes over.
    """

    def __init__(self, rank: int, num_ranks: int, send: Callable[[int, Message], None]) -> None:
        self._rank, self._num_ranks, self._send = rank, num_ranks, send
        self._lock = threading.Lock()
        self._life = self.number = 0
        self._open: dict[int, Agreement] = {}
        self._early: dict[tuple[int, int], list[Message]] = {}  # by (number, rank)
        self._closed = False

    def begin(self, life: int) -> None:
        """Another life of the Buffer: nothing of an earlier one counts."""
        with self._lock:
            self._life, self.number = life, 0
            self._open.clear()
            self._early.clear()

    def agree(self, masked: Collection[int], deadline_s: float) -> frozenset[int]:
        """Whom all that are left leave out from now on: at least whom one of them masks, and who has ended or does not
        come within the deadline. Collective among them.

        Raises:
            PeerLost: the others leave this rank out.
        """
        with self._lock:
            self.number += 1
            number = self.number
            one = Agreement(self._rank, self._num_ranks, None, lambda to, said: self._say(number, to, said))
            one.suspect(masked)
            self._open[number] = one
            self._open.pop(number - _KEPT, None)
            early = [(rank, said) for (at, rank), all_ in self._early.items() if at == number for said in all_]
            self._early = {key: said for key, said in self._early.items() if key[0] > number}
            if self._closed:
                one.end()
        for rank, said in early:
            self._hand(one, rank, said)
        try:
            left = one.agree((), deadline_s)
        except PeerLost as lost:
            lost.phase = PHASE
            raise
        return frozenset(range(self._num_ranks)) - frozenset(left)

    def hear(self, rank: int, message: Message) -> None:
        """On the messenger's thread. Raises ValueError, TypeError or KeyError when no correct rank says that."""
        life, number = whole(message["life"]), whole(message["at"])
        View.of(message, self._num_ranks)
        with self._lock:
            one = self._open.get(number)
            if life != self._life or (one is None and number <= self.number):
                return
            if one is None:
                self._early.setdefault((number, rank), []).append(message)
                del self._early[number, rank][:-_EARLY]
                newest = sorted({at for at, _ in self._early})[-_EARLY:]  # a rank that is left out hears of all of them
                self._early = {key: said for key, said in self._early.items() if key[0] in newest}
                return
        self._hand(one, rank, message)

    def lose(self, rank: int) -> None:
        """On the messenger's thread: a rank's listener refuses."""
        with self._lock:
            open_ = list(self._open.values())
        for one in open_:
            one.lose(rank)

    def close(self) -> None:
        """Ends every wait here."""
        with self._lock:
            self._closed = True
            open_ = list(self._open.values())
        for one in open_:
            one.end()

    def _say(self, number: int, to: int, said: Message) -> None:
        self._send(to, {**said, "k": "masks", "life": self._life, "at": number})

    def _hand(self, one: Agreement, rank: int, message: Message) -> None:
        view, _ = View.of(message, self._num_ranks)
        one.hear(rank, 1, view)
