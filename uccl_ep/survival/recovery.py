"""Buffer.recover: from one life to the next, with the ranks that are left or with those of a new group."""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from uccl_ep.errors import Described, NoQuorum, PeerLost, PeerTimeout, UcclEpError, refuse
from uccl_ep.group.group import as_group
from uccl_ep.membership.agreement_service import AgreementService
from uccl_ep.membership.survivor_group import SurvivorGroup
from uccl_ep.survival.life import Life

_log = logging.getLogger("uccl_ep")


@dataclass(frozen=True)
class RecoveryReport:
    """The result of one recover().

    Attributes:
        lost, joined: ranks that were members before and are not now, and the other way round.
        members: ranks that go on, ascending.
        cause: the error that ended the life before; None when there was none.
        seconds: from the call to the first moment at which the Buffer could be used.
    """

    lost: tuple[int, ...]
    joined: tuple[int, ...]
    members: tuple[int, ...]
    cause: UcclEpError | None
    seconds: float

    def __str__(self) -> str:
        parts = []
        if self.lost:
            phase = getattr(self.cause, "phase", None)
            parts.append(f"lost rank(s) {_listed(self.lost)}" + (f" in {phase}" if phase else ""))
        if self.joined:
            parts.append(f"rank(s) {_listed(self.joined)} joined")
        parts.append(f"going on with rank(s) {_listed(self.members)} after {self.seconds:.2f} s")
        return ", ".join(parts)


def _listed(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks))


class Recovery:
    """One recover(), of a Buffer whose life so far was `life`; its arguments as Buffer documents them.

    Attributes:
        keeps_graphs: whether captured calls go on in the next life, once it has begun.

    Raises:
        InvalidArgument: the group is of another size or order, or the timeout is none.
    """

    def __init__(self, life: Life, group: Any, timeout_s: float | None) -> None:
        self._begin = time.monotonic()
        self._life, self._session, self._captured = life, life.session, life.captured()
        self._terms = replace(life.terms, captured=self._captured)
        self._deadline_s = life.terms.settings.timeout_s if timeout_s is None else timeout_s
        if not 0 < self._deadline_s < 1e6:
            refuse("timeout_s", timeout_s, "a number of seconds above 0")
        self._group = None if group is None else as_group(group)
        rank, size = self._session.rank, self._session.num_ranks
        if self._group is not None and (self._group.rank(), self._group.size()) != (rank, size):
            shown = f"rank {self._group.rank()} of {self._group.size()}"
            refuse("group", Described(shown), f"a group in which this is rank {rank} of {size}")
        self._cause: UcclEpError | None = None

    def next_life(self, allow_minority: bool) -> Life:
        """Ends the life so far and begins the next. Collective among the ranks that are left.

        Raises:
            PeerLost, NoQuorum, PeerTimeout, UcclEpError: as Buffer.recover; the life so far has ended all the same.
        """
        session = self._session
        try:
            session.check()
        except UcclEpError as error:
            self._cause = error.with_traceback(None)  # the frames of the old life would live on in the report
        self._life.close_device()  # what is queued ends: a fault has ended its waits
        with nullcontext() if self._captured is None else self._captured.kept():
            if self._group is None:
                life = self._with_survivors(allow_minority)
            else:
                session.close(0.0)
                life = Life(self._group, self._terms)
            self.keeps_graphs = self._captured is not None and self._captured.go_on_in(life)
        return life

    def _with_survivors(self, allow_minority: bool) -> Life:
        session, cause = self._session, self._cause
        agreement_service = session.release_roll_call()
        assert agreement_service is not None  # only a session whose start failed has none
        suspect = cause.peer if isinstance(cause, (PeerLost, PeerTimeout)) else None
        innocent = session.rank, agreement_service.called_by  # who called for this without a suspect has not gone
        hints = set() if suspect is None or suspect in innocent else {suspect}
        failure: UcclEpError | None = None
        try:
            while True:
                before = agreement_service.members
                agreement_service.agree(hints, self._deadline_s, allow_minority)
                if failure is not None and agreement_service.members == before:
                    raise failure  # not for want of a rank that has ended
                session.close(0.0)
                life, failure = self._try(agreement_service)
                if life is not None:
                    agreement_service.settle()
                    return life
                peer = getattr(failure, "peer", None)
                hints = set() if peer is None else {peer}
        except BaseException as error:
            session.keep_roll_call()
            if isinstance(error, NoQuorum):
                session.hear_call(list(error.missing), session.rank)  # nobody else uses it any more
            raise

    def _try(self, agreement_service: AgreementService) -> tuple[Life, None] | tuple[None, UcclEpError]:
        """Starts a life with the ranks that were agreed on. Returns an error if one of them was lost or failed."""
        try:
            survivors = SurvivorGroup(agreement_service, self._session.hosts, self._deadline_s, self._session.domains)
            return Life(survivors, self._terms), None
        except UcclEpError as error:
            return None, error

    def report(self, life: Life) -> RecoveryReport:
        """Logs and returns the report of this recover(); `life` is the next one."""
        before, members = set(self._life.members()), life.members()
        lost, joined = tuple(sorted(before - set(members))), tuple(sorted(set(members) - before))
        seconds = time.monotonic() - self._begin
        made = RecoveryReport(lost, joined, tuple(members), self._cause, seconds)
        _log.warning("rank %d: %s", life.session.rank, made)
        return made
