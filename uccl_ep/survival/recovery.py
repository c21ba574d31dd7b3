"""Buffer.recover: a new life inside the same Buffer, with the ranks that are left or with those of a new group.

A life is a Session: segments, proxy, handshake. The new one's memory is new on purpose: a process that was stopped,
excluded, and wakes up still maps the old memory, and what it writes there reaches nobody.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

from uccl_ep.errors import InvalidArgument, NoQuorum, PeerLost, PeerTimeout, UcclEpError, refuse
from uccl_ep.group.group import Group, as_group
from uccl_ep.membership.agreement_service import AgreementService
from uccl_ep.membership.survivor_group import SurvivorGroup
from uccl_ep.session.session import Session
from uccl_ep.system.ownership import in_turn

_log = logging.getLogger("uccl_ep")


@dataclass(frozen=True)
class Recovery:
    """What one recover() came to.

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


class RecoveryApi:
    """What Buffer inherits.

    Attributes:
        recoveries: one report for each recover() that succeeded, oldest first.
    """

    rank: int
    group: Any
    group_size: int
    runtime: Session | None
    recoveries: list[Recovery]

    @property
    def _session(self) -> Session:
        raise AttributeError("_session")  # Buffer has it

    def _make_session(self, group: Group) -> Session:
        raise AttributeError("_make_session")  # Buffer has it

    def _close_device(self) -> None:
        raise AttributeError("_close_device")  # Buffer has it

    def members(self) -> list[int]:
        """Ranks that take part, ascending: all, less those that recover() went on without."""
        return [rank for rank in range(self.group_size) if rank not in self._session.absent]

    @in_turn("recover")
    def recover(self, group: Any = None, timeout_s: float | None = None, allow_minority: bool = False) -> list[int]:
        """Goes on after PeerLost or PeerTimeout. Collective among the ranks that are left.

        Ranks and experts keep their numbers. Tokens that are routed to an absent rank's experts are dropped as a masked
        rank's are: nothing is sent, combine leaves them out and does not renormalise. Handles, hooks and views from
        before are refused or without effect; sizes and settings stay. A rank that has not noticed the loss is told by
        the first one that calls this: its current or next call raises PeerLost.

        Survivors go on where they are a majority of the last agreed members, or exactly half of them with the lowest
        rank, because a network that is cut leaves living ranks on both sides. Ranks whose process has ended are not
        counted, if a rank of their host is left to see it; that a connection has ended proves nothing.

        Args:
            group: None: the survivors agree on who is left, without the group, which may be broken. Else a new group
                of the original size, in which replaced ranks construct a Buffer with the same arguments: all ranks
                take part again.
            timeout_s: how long a rank that lives may take to come, and every later step of the start; None:
                UCCL_EP_TIMEOUT_S.
            allow_minority: goes on with fewer, when all survivors say so: the caller knows that no others do. Without
                effect with a group, which agrees by itself on who takes part.

        Returns:
            The ranks that take part, ascending, the same on all of them.

        Raises:
            PeerLost: the others have gone on without this rank; says who told so. Make a new Buffer, or recover with a
                new group.
            NoQuorum: too few are left; says who is missing and how many are needed. recover() may be called again.
            PeerTimeout, UcclEpError: the new start failed; recover() may be called again.
            InvalidArgument: the Buffer has been destroyed, or the group is of another size or order.
        """
        begin = time.monotonic()
        session = self.runtime
        if session is None:
            raise InvalidArgument("this Buffer has been destroyed; there is nothing to recover")
        deadline_s = session.settings.timeout_s if timeout_s is None else timeout_s
        if not 0 < deadline_s < 1e6:
            refuse("timeout_s", timeout_s, "a number of seconds above 0")
        adapted = None if group is None else as_group(group)
        if adapted is not None and (adapted.rank(), adapted.size()) != (self.rank, self.group_size):
            shown = f"rank {adapted.rank()} of {adapted.size()}"
            refuse("group", shown, f"a group in which this is rank {self.rank} of {self.group_size}")
        cause = None
        try:
            session.check()
        except UcclEpError as error:
            cause = error.with_traceback(None)  # the frames of the old life would live on in the report
        self._close_device()  # what is queued ends: a fault has ended its waits
        before = set(range(self.group_size)) - session.absent
        if adapted is None:
            hints = {cause.peer} if isinstance(cause, (PeerLost, PeerTimeout)) and cause.peer is not None else set()
            life = self._with_survivors(session, hints - {self.rank}, deadline_s, allow_minority)
        else:
            session.close(0.0)
            life = self._make_session(adapted)
            self.group = group
        self.runtime = life
        self._report(before, cause, time.monotonic() - begin)
        return self.members()

    def _with_survivors(self, session: Session, hints: set[int], deadline_s: float, allow_minority: bool) -> Session:
        agreement_service = session.release_roll_call()
        assert agreement_service is not None  # only a session whose start failed has none
        failure: UcclEpError | None = None
        try:
            while True:
                before = agreement_service.members
                agreement_service.agree(hints, deadline_s, allow_minority)
                if failure is not None and agreement_service.members == before:
                    raise failure  # not for want of a rank that has ended
                session.close(0.0)
                life, failure = self._try(agreement_service, session, deadline_s)
                if life is not None:
                    agreement_service.settle()
                    return life
                peer = getattr(failure, "peer", None)
                hints = set() if peer is None else {peer}
        except BaseException as error:
            session.keep_roll_call()
            if isinstance(error, NoQuorum):
                session.hear_call(list(error.missing), self.rank)  # nobody else uses it any more
            raise

    def _try(
        self, agreement_service: AgreementService, session: Session, deadline_s: float
    ) -> tuple[Session, None] | tuple[None, UcclEpError]:
        """A start with the ranks that were agreed on; an error when one of them was lost meanwhile, or it failed."""
        try:
            return self._make_session(SurvivorGroup(agreement_service, session.hosts, deadline_s)), None
        except UcclEpError as error:
            return None, error

    def _report(self, before: set[int], cause: UcclEpError | None, seconds: float) -> None:
        members = self.members()
        lost, joined = tuple(sorted(before - set(members))), tuple(sorted(set(members) - before))
        self.recoveries.append(Recovery(lost, joined, tuple(members), cause, seconds))
        _log.warning("rank %d: %s", self.rank, self.recoveries[-1])
