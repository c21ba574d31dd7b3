"""Who is still here: agreement among the surviving ranks of a group, without the group.

Decisions are numbered (*generations*); each names the absent ranks and only adds to them. In a generation every
participant tells all others its state: whom it suspects, and whether everybody it does not suspect has told it the same
suspects (*confirming*). Suspects flood: who hears of one suspects it too and begins anew. Who hears everybody confirm
has decided, and from then on answers with the decision, so that a rank which missed a confirmation, because its sender
died after telling only some, takes the decision over. Nobody can decide otherwise as long as one decided rank lives,
since that takes its confirmation too. (A network that cuts living ranks from each other may leave two groups that both
think the other dead; no session spans them, because a session's exchanges need every rank that was agreed on.)

A rank is suspected when its process has ended, or when it has not come by the deadline. One that is alive but has not
noticed yet is told by the first message: `on_call` ends what it is doing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from uccl_ep.accusations import Accusation, Accusations
from uccl_ep.errors import InvalidArgument, PeerLost, PeerTimeout, UcclEpError
from uccl_ep.proof import keyed
from uccl_ep.switchboard import Message, Switchboard

HINT_GRACE_S = 3.0  # for the sign of life of a rank that somebody has waited for in vain already
_PHASE = "recovery"
_ALIVE, _PROPOSING, _CONFIRMING, _DECIDED = range(-1, 3)
_MAX_EXCHANGES = 16

OnCall = Callable[[list[int], int], None]  # (ranks that are suspected, the rank that says so)


@dataclass(frozen=True)
class _View:
    """What a peer last said of the open generation."""

    number: int
    suspects: frozenset[int]
    hints: frozenset[int]  # whom its call was about, before anybody was asked
    phase: int


class RollCall:
    """One rank's part. The listener lives as long as this object; agree() is called when something is wrong.

    Attributes:
        members: ranks of the last decision, all of them at first.
        generation: its number, 0 at first.
    """

    def __init__(self, rank: int, num_ranks: int, secret: bytes, interface: str, on_call: OnCall | None = None) -> None:
        self.rank, self.num_ranks = rank, num_ranks
        self.on_call = on_call
        self.members = frozenset(range(num_ranks))
        self.generation = 0
        self._decisions: dict[int, frozenset[int]] = {0: frozenset()}
        self._changed = threading.Condition()
        self._joined = False
        self._suspects: set[int] = set()
        self._hints: frozenset[int] = frozenset()
        self._phase = _ALIVE
        self._views: dict[int, _View] = {}
        self._gone: set[int] = set()  # since the open generation began
        self._excluded_by: int | None = None
        self._number = 0
        self._moved_at = 0.0
        self._called = False  # on_call was told of the open generation
        self._closed = False
        self._given: dict[tuple[int, int], dict[int, bytes]] = {}
        self._words = Accusations(
            rank, num_ranks, self._changed, lambda to, said: self._board.send(to, said), self._over
        )
        self._secret = secret
        self._board = Switchboard(rank, secret, interface, self._hear, self._lose)

    @property
    def address(self) -> str:
        """Where this rank listens, for the others' meet()."""
        host, port = self._board.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def secret_of(self, session: int) -> bytes:
        """The secret of a later session of these ranks: its number has travelled, the secret has not."""
        return keyed(self._secret, b"session" + session.to_bytes(8, "little"))

    @property
    def strangers(self) -> int:
        """Connections that were dropped because who made them had not the secret, or broke the form."""
        return self._board.strangers

    def meet(self, addresses: Mapping[int, str]) -> None:
        """Where the others listen.

        Raises:
            UcclEpError: an address that is none.
        """
        found = {}
        for rank, text in addresses.items():
            host, _, port = text.rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
                raise UcclEpError(
                    f"rank {rank} says that its roll call listens on {text!r}: not an address with a port"
                )
            found[rank] = (host.strip("[]"), int(port))
        self._board.meet(found)

    def close(self) -> None:
        """Ends the listener and every wait here: to the others, this rank has gone. Idempotent."""
        self._board.close()
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # ---- agreeing --------------------------------------------------------------------------------------------------

    def agree(self, hints: Collection[int], deadline_s: float) -> list[int]:
        """The ranks that go on, ascending, the same on all of them. Collective among survivors.

        Args:
            hints: ranks that something was wrong with. They are asked like the others, but given less time for a sign
                of life, since somebody has waited for them already.
            deadline_s: how long a rank that is alive may take to come, in seconds.

        Raises:
            PeerLost: the others have gone on without this rank; says which rank told so.
            InvalidArgument: the roll call is closed.
        """
        with self._changed:
            goal = self.generation + 1
            self._joined, self._suspects = True, set(range(self.num_ranks)) - self.members
            self._hints = frozenset(hints) & self.members
            self._phase = _PROPOSING
            self._moved_at = began = time.monotonic()
            heard = set(self._views)
            self._tell()
            self._step()
            while self.generation < goal and self._excluded_by is None:
                self._check_open()
                heard |= set(self._views)
                now = time.monotonic()
                late = {r for r in hints if r not in heard and now - began >= min(HINT_GRACE_S, deadline_s)}
                late |= self._behind() if now - max(began, self._moved_at) >= deadline_s else set()
                if late & (self.members - self._suspects):
                    self._gone |= late & self.members
                    self._step()
                    continue
                self._changed.wait(min(0.05, deadline_s))
            self._joined = False
            if self._excluded_by is not None:
                raise self._exclusion()
            return sorted(self.members)

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidArgument("this roll call is closed: its Buffer has been destroyed or has another group")

    def _behind(self) -> set[int]:
        """Members that have not come, or not as far as this rank. Lock held."""
        views, mine = self._views, frozenset(self._suspects)
        others = self.members - self._suspects - {self.rank}
        return {r for r in others if r not in views or views[r].phase < self._phase or views[r].suspects != mine}

    def _exclusion(self) -> PeerLost:
        error = PeerLost(rank=self.rank, peer=self.rank, phase=_PHASE)
        error.args = (f"rank {self.rank} was excluded: rank {self._excluded_by} says that the others go on without it",)
        return error

    def _step(self) -> None:
        """Goes as far as what was heard allows. Lock held."""
        while self._joined and self._excluded_by is None:
            before = (len(self._suspects), self._phase)
            self._suspects |= self._gone & self.members - {self.rank}
            for rank in self.members - {self.rank}:
                view = self._views.get(rank)
                if view is None or rank in self._suspects or view.phase < _PROPOSING:
                    continue
                if self.rank in view.suspects:
                    self._excluded_by = rank
                    break
                self._suspects |= view.suspects
            if len(self._suspects) != before[0]:
                self._phase = _PROPOSING
            mine, others = frozenset(self._suspects), self.members - self._suspects - {self.rank}
            views = [self._views.get(rank) for rank in others]
            least = min((v.phase if v and v.suspects == mine else _ALIVE for v in views), default=_DECIDED)
            if self._phase == _PROPOSING and least >= _PROPOSING:
                self._phase = _CONFIRMING
            elif self._phase == _CONFIRMING and least >= _CONFIRMING:
                self._decide(mine)
                break
            if (len(self._suspects), self._phase) == before:
                break
            self._moved_at = time.monotonic()
            self._tell()
        self._changed.notify_all()

    def _decide(self, absent: frozenset[int]) -> None:
        """Closes the open generation. Lock held."""
        self.generation += 1
        self._decisions[self.generation] = absent
        self.members = frozenset(range(self.num_ranks)) - absent
        self._joined, self._called, self._phase, self._hints = False, False, _ALIVE, frozenset()
        self._views.clear()
        self._gone.clear()
        self._words.forget()
        self._given = {key: values for key, values in self._given.items() if key[0] >= self.generation}
        for rank in range(self.num_ranks):
            self._answer(rank, self.generation)
        self._changed.notify_all()

    # ---- what is said ----------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        for rank in range(self.num_ranks):
            self._send(rank, self.generation + 1, frozenset(self._suspects), self._phase)

    def _answer(self, rank: int, generation: int) -> None:
        self._send(rank, generation, self._decisions[generation], _DECIDED)

    def _send(self, rank: int, generation: int, suspects: frozenset[int], phase: int) -> None:
        if rank == self.rank:
            return
        self._number += 1
        before = self._decisions.get(generation - 1, frozenset())
        state = {"k": "state", "g": generation, "n": self._number, "p": phase, "x": sorted(suspects)}
        self._board.send(rank, {**state, "hints": sorted(self._hints), "before": sorted(before)})

    # ---- what is heard (on the switchboard's thread) ---------------------------------------------------------------

    def _lose(self, rank: int) -> None:
        with self._changed:
            self._gone.add(rank)
            self._step()

    def _hear(self, rank: int, message: Message) -> None:
        """A frame of a rank. Raises ValueError, TypeError or KeyError when no correct rank says that."""
        generation = _whole(message["g"])
        if not 0 <= rank < self.num_ranks or rank == self.rank:
            raise ValueError("no such rank")
        if message["k"] in ("accuse", "alive"):
            with self._changed:
                current = rank in self.members and generation == self.generation
            self._words.hear(rank, generation, message, current)
            return
        if message["k"] == "give":
            self._take(rank, generation, _whole(message["i"]), message["v"])
            return
        if message["k"] != "state" or type(message["p"]) is not int or not _ALIVE <= message["p"] <= _DECIDED:
            raise ValueError("no such message")
        view = _View(_whole(message["n"]), self._ranks(message["x"]), self._ranks(message["hints"]), message["p"])
        before = self._ranks(message["before"])
        called = None
        with self._changed:
            if generation > self.generation + 1:
                self._catch_up(rank, generation - 1, before)
            if rank in self.members and generation == self.generation + 1:
                called = self._note(rank, view)
            elif generation <= self.generation and _ALIVE < view.phase < _DECIDED:
                self._answer(rank, generation if generation in self._decisions else self.generation)
            elif rank not in self.members and view.phase < _DECIDED:
                self._answer(rank, self.generation)
            self._changed.notify_all()
        if called is not None and self.on_call is not None:
            self.on_call(called, rank)

    def _note(self, rank: int, view: _View) -> list[int] | None:
        """A word on the open generation. Returns whom to report when it is news to this rank. Lock held."""
        known = self._views.get(rank)
        if known is not None and view.number <= known.number:
            return None
        self._views[rank] = view
        self._gone.discard(rank)
        if view.phase == _DECIDED:
            if self.rank in view.suspects:
                self._excluded_by = rank
            elif self._joined:
                self._decide(view.suspects)
                return None
        if self._joined:
            self._step()
            return None
        if view.phase == _ALIVE:
            return None
        self._send(rank, self.generation + 1, frozenset(range(self.num_ranks)) - self.members, _ALIVE)
        if self._called:
            return None
        self._called = True
        return sorted((view.suspects or view.hints) & self.members - {self.rank}) or [rank]

    def _catch_up(self, rank: int, generation: int, absent: frozenset[int]) -> None:
        """A peer has decided what this rank has not. Lock held."""
        if self.rank in absent:
            self._excluded_by = rank
        elif generation == self.generation + 1 and rank in self.members:
            self._decide(absent)

    def _ranks(self, value: object) -> frozenset[int]:
        if not isinstance(value, list) or len(value) > self.num_ranks:
            raise ValueError("no ranks")
        ranks = frozenset(_whole(rank) for rank in value)
        if ranks and max(ranks) >= self.num_ranks:
            raise ValueError("no such rank")
        return ranks

    # ---- accusations -----------------------------------------------------------------------------------------------

    def accuse(self, peer: int, reason: str) -> None:
        """Tells all others whom this rank has waited for in vain, or lost: they may be waiting for this rank.

        Args:
            peer: -1 when it is not known.
            reason: for people.
        """
        self._words.accuse(self.generation, peer, reason)

    def accusations(self, of: int | None, grace_s: float) -> dict[int, Accusation]:
        """What the others have said since the last decision, by rank.

        Waits `grace_s` seconds for them, or no longer than until rank `of` has said something or its process has ended.
        """
        return self._words.wait(of, grace_s)

    def follow(self, accused: int, grace_s: float, patience_s: float) -> dict[int, Accusation]:
        """The same after `grace_s` seconds, when rank `accused` was accused before and has not answered that it is
        alive. If it has, it is given `patience_s` to say whom it waits for, and the others `grace_s` more."""
        return self._words.follow(accused, grace_s, patience_s)

    def silent(self) -> set[int]:
        """Members that have neither accused anybody nor answered an accusation since the last decision."""
        return self._words.silent() & self.members

    def _over(self, rank: int | None) -> bool:
        return self._closed or rank in self._gone

    # ---- exchanges among the survivors -----------------------------------------------------------------------------

    def _take(self, rank: int, generation: int, index: int, value: object) -> None:
        if not isinstance(value, bytes) or index >= _MAX_EXCHANGES:
            raise ValueError("no exchange")
        with self._changed:
            if rank in self.members and generation in (self.generation, self.generation + 1):
                self._given.setdefault((generation, index), {})[rank] = value
                self._changed.notify_all()

    def exchange(self, generation: int, index: int, value: bytes, deadline_s: float) -> dict[int, bytes]:
        """Everybody's value of the `index`-th exchange after a decision, by rank. Collective among its members.

        Raises:
            PeerLost: a member has ended, or some member has begun to agree anew.
            PeerTimeout: a member has not come by the deadline.
        """
        with self._changed:
            members = self.members
            for rank in members - {self.rank}:
                self._board.send(rank, {"k": "give", "g": generation, "i": index, "v": value})
            begin = time.monotonic()
            while True:
                self._check_open()
                given = {**self._given.get((generation, index), {}), self.rank: value}
                missing = members - given.keys()
                if not missing and generation == self.generation:
                    return {rank: given[rank] for rank in sorted(members)}
                waited = time.monotonic() - begin
                doubted = {
                    r for v in self._views.values() if v.phase > _ALIVE for r in (v.suspects | v.hints) & members
                }
                lost = sorted(missing & self._gone) or sorted(doubted - {self.rank})
                if self._excluded_by is not None:
                    raise self._exclusion()
                if lost or generation != self.generation or self._called:
                    peer = lost[0] if lost else next(iter(self._views), None)
                    raise PeerLost(rank=self.rank, peer=peer, phase=_PHASE, waited_s=waited)
                if waited >= deadline_s:
                    raise PeerTimeout(rank=self.rank, peer=min(missing), phase=_PHASE, waited_s=waited)
                self._changed.wait(min(0.5, deadline_s))


def _whole(value: object) -> int:
    if type(value) is not int or value < 0 or value >= 1 << 63:
        raise ValueError("not a number")
    return value
