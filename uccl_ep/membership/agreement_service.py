"""What the surviving ranks of a group tell each other without the group, to agree (agreement.py) on who is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from uccl_ep.errors import PeerLost, PeerTimeout, UcclEpError
from uccl_ep.membership.agreed_values import AgreedValues
from uccl_ep.membership.agreement import PHASE, Agreement
from uccl_ep.membership.agreement_view import ALIVE, View, whole
from uccl_ep.membership.messenger import Message, Messenger
from uccl_ep.membership.proof import keyed
from uccl_ep.membership.quorum import Quorum
from uccl_ep.membership.returns import Returns
from uccl_ep.membership.wait_reports import POLL_S, WaitReport, WaitReports

_MAX_EXCHANGES = 16
_MAX_NOTICE = 4096  # bytes

OnCall = Callable[[list[int], int], None]  # (ranks that are suspected, the rank that says so)
OnGoodbye = Callable[[int], None]  # (the rank that leaves)
OnNotice = Callable[[int, int, bytes], None]  # (the rank that tells, a number that grows, what)


class AgreementService(Agreement):
    """One rank's part. The listener lives as long as this object; agree() is called when something is wrong.

    Args:
        quorum: survivors go on where they are one (quorum.py); else any do.
        absent: ranks that are no members from the beginning.

    Attributes:
        returns: how ranks that left each other out take up again, without a new group.
        agreed_masks, changes: how ranks come to leave out the same ones, and to know the next life, without a group.
    """

    def __init__(
        self,
        rank: int,
        num_ranks: int,
        secret: bytes,
        interface: str,
        on_call: OnCall | None = None,
        quorum: bool = False,
        absent: frozenset[int] = frozenset(),
    ) -> None:
        known = Quorum(rank, num_ranks) if quorum else None
        super().__init__(rank, num_ranks, known, self._post, absent)
        self.on_call = on_call
        self.on_goodbye: OnGoodbye | None = None
        self.on_notice: OnNotice | None = None
        self._given: dict[tuple[int, int], dict[int, bytes]] = {}
        self._words = WaitReports(rank, num_ranks, self._changed, self._post, self._over)
        self.returns = Returns(rank, num_ranks, self._changed, self._post)
        self.agreed_masks = AgreedValues("masks", "agreed masks", rank, num_ranks, self._post)
        self.changes = AgreedValues("members", "change of members", rank, num_ranks, self._post)
        self._secret = secret
        self._board = Messenger(rank, secret, interface, self._hear, self._lose)

    def _post(self, rank: int, message: Message) -> None:
        self._board.send(rank, message)

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
                    f"rank {rank} says that its agreement service listens on {text!r}: not an address with a port"
                )
            found[rank] = (host.strip("[]"), int(port))
        self._board.meet(found)

    def watch(self, ranks: Collection[int], on_death: Callable[[int], None]) -> None:
        """Looks after these ranks of other hosts, from now on (death_notices.py): `on_death` is called with each that
        ends without a goodbye, on the messenger's thread, and must not block."""
        self._board.watch(ranks, on_death)

    def close(self, error: str = "", goodbye: Collection[int] = ()) -> None:
        """Ends the listener and every wait here: to the others, this rank has gone. Idempotent.

        Args:
            error: by which it leaves; they are told.
            goodbye: ranks that are told that it leaves in good order, who have no other way to know.
        """
        for rank in goodbye:
            self._post(rank, {"k": "goodbye", "g": self.generation})
        if error:
            self._words.report_error(self.generation, error)
        self._board.close()
        self.agreed_masks.close()
        self.changes.close()
        with self._changed:
            self._closed = True
            if self._quorum is not None:
                self._quorum.forget()
            self._changed.notify_all()

    # ---- what is heard (on the messenger's thread) ---------------------------------------------------------------

    def _lose(self, rank: int) -> None:
        self.lose(rank)
        self.agreed_masks.lose(rank)
        self.changes.lose(rank)

    def _hear(self, rank: int, message: Message) -> None:
        """A frame of a rank. Raises ValueError, TypeError or KeyError when no correct rank says that."""
        generation = whole(message["g"])
        if not 0 <= rank < self.num_ranks or rank == self.rank:
            raise ValueError("no such rank")
        if message["k"] in ("waits", "alive", "leaves"):
            with self._changed:
                current = rank in self.members and generation == self.generation
                if rank not in self.members and message["k"] != "leaves":
                    self._answer(rank, self.generation)  # it does not know yet
            self._words.hear(rank, generation, message, current)
            return
        if message["k"] in ("goodbye", "notice"):
            self._hear_aside(rank, generation, message)
            return
        if message["k"] == "returns":
            self.returns.hear(rank, message)
            return
        if message["k"] == "masks":
            self.agreed_masks.hear(rank, message)
            return
        if message["k"] == "members":
            self.changes.hear(rank, message)
            return
        if message["k"] == "give":
            self._take(rank, generation, whole(message["i"]), message["v"])
            return
        if message["k"] != "state":
            raise ValueError("no such message")
        view, before = View.of(message, self.num_ranks)
        with self._changed:
            if generation > self.generation + 1:
                self._catch_up(rank, generation - 1, before)
            called = self.hear(rank, generation, view)
        if called is not None and self.on_call is not None:
            self.on_call(called, rank)

    def notify(self, ranks: Collection[int], number: int, what: bytes) -> None:
        """Tells members something that reaches them no other way.

        Args:
            number: higher than that of the notice before.
            what: up to 4,096 bytes.
        """
        for rank in ranks:
            self._post(rank, {"k": "notice", "g": self.generation, "n": number, "v": what})

    def _hear_aside(self, rank: int, generation: int, message: Message) -> None:
        """A goodbye or a notice; one of another group concerns nobody. Raises ValueError, TypeError or KeyError."""
        with self._changed:
            current = rank in self.members and generation == self.generation
        if message["k"] == "goodbye":
            if current and self.on_goodbye is not None:
                self.on_goodbye(rank)
            return
        number, what = whole(message["n"]), message["v"]
        if not isinstance(what, bytes) or len(what) > _MAX_NOTICE:
            raise ValueError("no notice")
        if current and self.on_notice is not None:
            self.on_notice(rank, number, what)

    def _begin_group(self) -> None:
        self._words.forget()
        self._given = {key: values for key, values in self._given.items() if key[0] >= self.generation}

    # ---- wait reports -----------------------------------------------------------------------------------------------

    def report_wait(self, peer: int, reason: str) -> None:
        """Tells all others which rank this one has waited for in vain, or lost: they may be waiting for this one.

        Args:
            peer: -1 when it is not known.
            reason: for people.
        """
        self._words.report_wait(self.generation, peer, reason)

    def error_of(self, rank: int) -> str:
        """The error by which a rank has said that it leaves; empty: it has not."""
        return self._words.error_of(rank)

    def wait_reports(self, of: int | None, grace_s: float) -> dict[int, WaitReport]:
        """What the others have reported since the last decision, by rank.

        Waits `grace_s` seconds for them, or no longer than until rank `of` has said something or its process has ended.
        """
        return self._words.wait(of, grace_s)

    def follow(self, waited_for: int, grace_s: float, patience_s: float) -> dict[int, WaitReport]:
        """The same after `grace_s` seconds, if rank `waited_for` was reported before and has not answered that it is
        alive.
        If it has, it gets `patience_s` to report whom it waits for, and the others get `grace_s` more."""
        return self._words.follow(waited_for, grace_s, patience_s)

    def silent(self) -> set[int]:
        """Members that have neither reported a wait nor answered a wait report since the last decision."""
        return self._words.silent() & self.members

    def _over(self, rank: int | None) -> bool:
        self._look()
        return self._closed or self.excluded_by is not None or rank in self._gone

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
                self._look()
                given = {**self._given.get((generation, index), {}), self.rank: value}
                missing = members - given.keys()
                if not missing and generation == self.generation:
                    return {rank: given[rank] for rank in sorted(members)}
                waited = time.monotonic() - begin
                doubted = {r for v in self._views.values() if v.phase > ALIVE for r in (v.suspects | v.hints) & members}
                lost = sorted(missing & self._gone) or sorted(doubted - {self.rank})
                if self.excluded_by is not None:
                    raise self.exclusion()
                if lost or generation != self.generation or self._called:
                    peer = lost[0] if lost else next(iter(self._views), None)
                    raise PeerLost(rank=self.rank, peer=peer, phase=PHASE, waited_s=waited)
                if waited >= deadline_s:
                    raise PeerTimeout(rank=self.rank, peer=min(missing), phase=PHASE, waited_s=waited)
                self._changed.wait(min(POLL_S, deadline_s))
