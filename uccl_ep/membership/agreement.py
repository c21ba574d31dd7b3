"""Who is still here: agreement among the surviving ranks of a group, without the group.

Decisions are numbered (*generations*); each names the absent ranks and only adds to them. In a generation every
participant tells all others its state: whom it suspects, and whether everybody it does not suspect has told it the same
suspects (*confirming*). Suspects flood: who hears of one suspects it too and begins anew. Who hears everybody confirm
has decided, and from then on answers with the decision, so that a rank which missed a confirmation, because its sender
died after telling only some, takes the decision over. Nobody can decide otherwise as long as one decided rank lives,
since that takes its confirmation too.

A network that cuts living ranks from each other leaves groups that each think the others dead. So who confirms also
says whether what it knows makes these survivors a quorum (quorum.py), and whether they may go on all the same. All of
a group hear the same confirmations: it decides when one of them knows of a quorum, or all allow to go on without; else
all are refused, the generation stays open, and they may try again. Tries are numbered too (*ballots*), and begin with
no suspects. Who hears of a later ballot than its own joins that; or is refused itself, if who speaks has been.

A rank is suspected when its process has ended, its host refuses, or it has not come by the deadline. One that is alive
but has not noticed yet is told by the first message: `on_call` ends what it is doing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

from uccl_ep.errors import InvalidArgument, PeerLost
from uccl_ep.membership.agreement_view import ALIVE, CONFIRMING, DECIDED, PROPOSING, View
from uccl_ep.membership.messenger import Message
from uccl_ep.membership.neighbours import Neighbours
from uccl_ep.membership.quorum import Quorum
from uccl_ep.membership.wait_reports import POLL_S

HINT_GRACE_S = 3.0  # for the sign of life of a rank that somebody has waited for in vain already
REFUSAL_GRACE_S = 1.0  # for the end of a process whose listener refuses already; and for it to be seen
PHASE = "recovery"


class Agreement:
    """One rank's state, without the network, which AgreementService is. All but agree() under its lock.

    Args:
        speak: sends a message to a rank.
        absent: ranks that are no members from the beginning.

    Attributes:
        members: ranks of the last decision, all that are not absent at first.
        generation: its number, 0 at first.
        excluded_by: a rank that has said that the others go on without this one.
        called_by: a rank that has called for the open generation and suspects nobody, while this one has not joined.
        late: ranks that had not come by the deadline, nor were known to have gone.
    """

    def __init__(
        self,
        rank: int,
        num_ranks: int,
        quorum: Quorum | None,
        speak: Callable[[int, Message], None],
        absent: frozenset[int] = frozenset(),
    ) -> None:
        self.rank, self.num_ranks = rank, num_ranks
        self.members = frozenset(range(num_ranks)) - absent
        self.generation = 0
        self.excluded_by: int | None = None
        self.called_by: int | None = None
        self.late: frozenset[int] = frozenset()
        self._quorum = quorum  # None: any survivors go on
        if quorum is not None and absent:
            quorum.settle(self.members)
        self._speak = speak
        self._number = 0  # of what was said last
        self._decisions: dict[int, frozenset[int]] = {0: absent}
        self._changed = threading.Condition()
        self._closed = False
        self._joined = False
        self._suspects: set[int] = set()
        self._hints: frozenset[int] = frozenset()
        self._phase = ALIVE
        self._views: dict[int, View] = {}
        self._left_out: frozenset[int] = frozenset()
        self._gone: set[int] = set()  # since the open generation began
        self._refusing: dict[int, float] = {}  # whose listeners refuse though they seem to live, and since when
        self._ballot, self._refusals = 0, 0  # of the open generation
        self._allows, self._backed = False, False  # to go on without a quorum; this rank knows of one
        self._refused: tuple[frozenset[int], frozenset[int]] | None = None  # whom, and who of them was unwilling
        self._grace_s = REFUSAL_GRACE_S
        self._moved_at = 0.0
        self._told: tuple[int, int, int] | None = None
        self._called = False  # on_call was told of the open generation

    def suspect(self, ranks: Collection[int]) -> None:
        """These are left out by what is agreed next, whatever they say."""
        with self._changed:
            self._left_out = frozenset(ranks) - {self.rank}

    def lose(self, rank: int) -> None:
        """A rank's listener refuses."""
        with self._changed:
            self._refusing.setdefault(rank, time.monotonic())
            self._look()
            self._step()
            self._changed.notify_all()

    def hear(self, rank: int, generation: int, view: View) -> list[int] | None:
        """What a rank says of a generation, the open one or one that is decided. Returns whom to report when it is
        news to this rank."""
        called = None
        with self._changed:
            if rank in self.members and generation == self.generation + 1:
                called = self._note(rank, view)
            elif generation <= self.generation and ALIVE < view.phase < DECIDED:
                self._answer(rank, generation if generation in self._decisions else self.generation)
            elif rank not in self.members and view.phase < DECIDED:
                self._answer(rank, self.generation)
            self._changed.notify_all()
        return called

    def end(self) -> None:
        """Ends every wait here."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _answer(self, rank: int, generation: int) -> None:
        self._send(rank, generation, self._decisions[generation], DECIDED)

    def _send(self, rank: int, generation: int, suspects: frozenset[int], phase: int) -> None:
        if rank == self.rank:
            return
        self._number += 1
        before = self._decisions.get(generation - 1, frozenset())
        dead = () if self._quorum is None else self._quorum.dead
        view = View(
            self._number, phase, suspects, self._hints, self._ballot, self._refusals, self._backed, self._allows, dead
        )
        self._speak(rank, {"k": "state", "g": generation, "before": sorted(before), **view.as_message()})

    def _begin_group(self) -> None:
        """What was said in the group before is over."""

    def see(self, life: Neighbours) -> None:
        """What the newest life of the Buffer shows of ranks of this host."""
        with self._changed:
            if self._quorum is not None:
                self._quorum.see(life)

    def settle(self) -> None:
        """All members have begun the newest life: from now on they are whom a majority is counted of."""
        with self._changed:
            if self._quorum is not None:
                self._quorum.settle(self.members)

    # ---- agreeing --------------------------------------------------------------------------------------------------

    def agree(self, hints: Collection[int], deadline_s: float, allow_minority: bool = False) -> list[int]:
        """The ranks that go on, ascending, the same on all of them. Collective among survivors.

        Args:
            hints: ranks that something was wrong with. They are asked like the others, but given less time for a sign
                of life, since somebody has waited for them already.
            deadline_s: how long a rank that is alive may take to come, in seconds.
            allow_minority: to go on without a quorum, if all survivors say so.

        Raises:
            PeerLost: the others have gone on without this rank; says which rank told so.
            NoQuorum: too few are left. May be called again.
            InvalidArgument: the agreement service is closed.
        """
        with self._changed:
            goal = self.generation + 1
            self._joined, self._refused, self._allows = True, None, allow_minority
            self._hints = frozenset(hints) & self.members
            self._grace_s = min(REFUSAL_GRACE_S, deadline_s / 4)
            self._open_ballot(max([self._ballot + 1, *(view.ballot for view in self._views.values())]))
            began = time.monotonic()
            heard = set(self._views)
            while self.generation < goal and self.excluded_by is None and self._refused is None:
                self._check_open()
                self._look()
                self._step()
                heard |= set(self._views)
                now = time.monotonic()
                late = {r for r in hints if r not in heard and now - began >= min(HINT_GRACE_S, deadline_s)}
                late |= self._behind() if now - max(began, self._moved_at) >= deadline_s else set()
                if late & (self.members - self._suspects):
                    self._gone |= late & self.members
                    self.late |= late & self.members
                    continue
                if self._joined:
                    self._changed.wait(min(POLL_S, deadline_s))
            self._joined = False
            if self.excluded_by is not None:
                raise self.exclusion()
            if self._refused is not None and self._quorum is not None:
                self._quorum.refuse(*self._refused)
            return sorted(self.members)

    def _open_ballot(self, ballot: int) -> None:
        """Proposes anew, with no suspects. Lock held."""
        self._ballot, self._phase = ballot, PROPOSING
        self._suspects = set(range(self.num_ranks)) - self.members | self._left_out
        self._views = {r: view for r, view in self._views.items() if view.ballot == ballot or view.phase == ALIVE}
        self._moved_at = time.monotonic()
        self._tell()
        self._step()

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidArgument(
                "this agreement service is closed: its Buffer has been destroyed or has another group"
            )

    def _behind(self) -> set[int]:
        """Members that have not come, or not as far as this rank. Lock held."""
        views, mine = self._views, frozenset(self._suspects)
        others = self.members - self._suspects - {self.rank}
        return {r for r in others if r not in views or views[r].phase < self._phase or views[r].suspects != mine}

    def exclusion(self) -> PeerLost:
        """The error of a rank that the others go on without."""
        error = PeerLost(rank=self.rank, peer=self.rank, phase=PHASE)
        error.args = (f"rank {self.rank} was excluded: rank {self.excluded_by} says that the others go on without it",)
        return error

    def _look(self) -> None:
        """Takes ranks whose listeners refuse for gone: at once when they are not seen to live, else after a moment: a
        process that is killed closes its sockets before it has ended. Lock held."""
        for rank, since in list(self._refusing.items()):
            seen_alive = self._quorum is not None and self._quorum.lives(rank)
            if not seen_alive or time.monotonic() - since >= self._grace_s:
                self._gone.add(rank)
                del self._refusing[rank]

    def _dead(self) -> set[int]:
        """Members that are certain to be in no other group. Lock held."""
        if self._quorum is None:
            return set()
        self._quorum.look(self._suspects, self._gone)
        return self._quorum.dead & self.members

    def _step(self) -> None:
        """Goes as far as what was heard allows. Lock held."""
        while self._joined and self.excluded_by is None:
            before = len(self._suspects)
            self._suspects |= self._dead() | self._gone & self.members - {self.rank}
            for rank in self.members - {self.rank}:
                view = self._views.get(rank)
                if view is None or rank in self._suspects or view.phase < PROPOSING:
                    continue
                if self.rank not in view.suspects:  # else it has yet to decide, or to be refused
                    self._suspects |= view.suspects
            if len(self._suspects) != before:
                self._phase = PROPOSING
            mine, others = frozenset(self._suspects), self.members - self._suspects - {self.rank}
            views = {rank: self._views.get(rank) for rank in others}
            least = min((v.phase if v and v.suspects == mine else ALIVE for v in views.values()), default=DECIDED)
            if self._phase == PROPOSING and least >= PROPOSING and self._may_vote(mine):
                self._phase = CONFIRMING
            elif self._phase == CONFIRMING and least >= CONFIRMING:
                self._count([view for view in views.values() if view is not None])
                break
            if self._state() == self._told:
                break
            self._moved_at = time.monotonic()
            self._tell()
        self._changed.notify_all()

    def _state(self) -> tuple[int, int, int]:
        """What all others are told of. Lock held."""
        return len(self._suspects), 0 if self._quorum is None else len(self._quorum.dead), self._phase

    def _may_vote(self, absent: frozenset[int]) -> bool:
        """Whether to confirm now: not while a death may yet be seen that would make a quorum. Lock held."""
        if (quorum := self._quorum) is None:
            return True
        quorum.look(absent, self._gone)  # also at those who are suspected since this step began
        self._backed = quorum.reached(self.members - absent)
        undead = [rank for rank in absent & quorum.base - quorum.dead if quorum.is_near(rank)]
        if not self._backed and undead and time.monotonic() - self._moved_at < self._grace_s:
            return False
        quorum.vote(absent)
        return True

    def _count(self, views: list[View]) -> None:
        """All have confirmed. Lock held."""
        if self._quorum is None or self._backed or any(view.backed for view in views):
            self._decide(frozenset(self._suspects))
        elif self._allows and all(view.allows for view in views):
            self._decide(frozenset(self._suspects))
        else:
            self._refuse()

    def _refuse(self) -> None:
        """Ends this rank's part in a ballot, and says so. Lock held."""
        group = frozenset(self.members - self._suspects)
        willing = {rank for rank, view in self._views.items() if view.allows} | ({self.rank} if self._allows else set())
        self._refused = group, group - willing
        self._refusals += 1
        self._joined, self._called, self.called_by, self._phase, self._hints = False, False, None, ALIVE, frozenset()
        self._suspects = set(range(self.num_ranks)) - self.members
        self._views.clear()
        self._gone.clear()
        self._refusing.clear()
        self._tell()
        self._changed.notify_all()

    def _decide(self, absent: frozenset[int]) -> None:
        """Closes the open generation. Lock held."""
        self.generation += 1
        self._decisions[self.generation] = absent
        self.members = frozenset(range(self.num_ranks)) - absent
        self._joined, self._called, self.called_by, self._phase, self._hints = False, False, None, ALIVE, frozenset()
        self._ballot, self._refusals = 0, 0
        self._views.clear()
        self._gone.clear()
        self._refusing.clear()
        self._begin_group()
        for rank in range(self.num_ranks):
            self._answer(rank, self.generation)
        self._changed.notify_all()

    def _tell(self) -> None:
        """All others of this rank's state. Lock held."""
        self._told = self._state()
        for rank in range(self.num_ranks):
            self._send(rank, self.generation + 1, frozenset(self._suspects), self._phase)

    def _note(self, rank: int, view: View) -> list[int] | None:
        """A word on the open generation. Returns whom to report when it is news to this rank. Lock held."""
        known = self._views.get(rank)
        if known is not None and view.number <= known.number:
            return None
        self._gone.discard(rank)
        self._refusing.pop(rank, None)
        if not self._same_ballot(rank, view, known):
            return None
        self._views[rank] = view
        if self._quorum is not None and view.phase > ALIVE:
            self._quorum.hear(view.dead)
        if view.phase == DECIDED:
            if self._quorum is None and rank in self._suspects:
                return None  # others may have confirmed its absence since: no quorum would notice
            if self.rank in view.suspects:
                self.excluded_by = rank
            elif self._joined:
                self._decide(view.suspects)
                return None
        if self._joined:
            self._step()
            return None
        if view.phase == ALIVE or self.excluded_by is not None:
            return None  # who leaves this rank out would answer that it does, and so on for ever
        self._send(rank, self.generation + 1, frozenset(range(self.num_ranks)) - self.members, ALIVE)
        if self._called:
            return None
        self._called = True
        doubted = sorted((view.suspects or view.hints) & self.members - {self.rank})
        self.called_by = None if doubted else rank
        return doubted or [rank]

    def _same_ballot(self, rank: int, view: View, known: View | None) -> bool:
        """Whether a word is of this rank's ballot, after it has left that for a later one if need be. Lock held."""
        if not self._joined or view.phase == DECIDED:
            return True
        if known is not None and known.phase > ALIVE and view.refusals > known.refusals:
            if self._quorum is not None:
                self._suspects |= known.suspects - {self.rank}
                self._refuse()  # as that one was
        elif view.phase > ALIVE and view.ballot > self._ballot:
            self._gone.clear()
            self._refusing.clear()
            self._open_ballot(view.ballot)
        elif view.phase > ALIVE and view.ballot < self._ballot:
            self._send(rank, self.generation + 1, frozenset(self._suspects), self._phase)
            return False
        return True

    def _catch_up(self, rank: int, generation: int, absent: frozenset[int]) -> None:
        """A peer has decided what this rank has not. Lock held."""
        if self.rank in absent:
            self.excluded_by = rank
        elif generation == self.generation + 1 and rank in self.members:
            self._decide(absent)
