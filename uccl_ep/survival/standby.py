"""A change of members: the next life of a Buffer is built beside the present one, which all ranks leave at one step.

Every rank of the present life builds, with the ranks of the next group, on a thread of its own; so do those that join,
in their constructor. A second thread then makes two agreements with the present life's ranks, over its agreement
service (membership/agreed_values.py), while calls go on:

1. each that is left has built, or says why it has not;
2. each pledges one of its steps (calls of switch_members), a few ahead of where it is. The change ends at the highest.

No rank goes past its own pledge before it knows all of them, so none has gone past the highest. Where all have built,
the change ends in the switch; else all raise the same error at that step and stay as they are. What is agreed on is the
same for all that are left, whoever dies meanwhile. A rank that has switched keeps the present life's agreement service
until all others know what it knows: as long as one lives that knows, nobody decides otherwise.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, replace

from uccl_ep.errors import UcclEpError
from uccl_ep.group.group import Group
from uccl_ep.layout.plan import MemoryBill
from uccl_ep.membership.agreed_values import MAX_TEXT
from uccl_ep.membership.wait_reports import POLL_S
from uccl_ep.survival.life import Life, Terms
from uccl_ep.system.os_limits import in_words

_log = logging.getLogger("uccl_ep")
_LEAST, _MOST, _AHEAD_S = 4, 1 << 16, 0.1  # steps that a pledge is ahead: about so many seconds


@dataclass(frozen=True)
class _Outcome:
    """Attributes: at: the step. failure: why the ranks stay as they are; None: they switch."""

    at: int
    failure: UcclEpError | None


class Standby:
    """One change of members on one rank of the life `present`. Its threads know no Buffer.

    Args:
        group: of the next life; None: this rank leaves.
        terms: of the next life.
        masked: ranks that are not waited for.
        deadline_s: how long building may take.
    """

    def __init__(
        self, present: Life, group: Group | None, terms: Terms, masked: Collection[int], deadline_s: float
    ) -> None:
        service = present.session.agreement_service
        assert service is not None  # a session that has started
        self.leaves, self._begin, self._deadline_s = group is None, time.monotonic(), deadline_s
        self._present, self._terms, self._changes = present, terms, service.changes
        self._numbers = self._changes.take_number(), self._changes.take_number()
        self._lock = threading.Lock()
        self._lost = set(masked)
        self._calls, self._pledge = 0, -1
        self._withdrawn = ""  # why this rank wants no change any more
        self._next: Life | None = None
        self._error, self._abandoned = "", False
        self._built, self._known = threading.Event(), threading.Event()
        self._outcome = _Outcome(0, None)
        self._left: frozenset[int] = frozenset()
        threading.Thread(target=self._decide, args=(group,), name="uccl-ep-change", daemon=True).start()

    # ---- for the Buffer --------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Counts a step. Whether the switch is due: from the agreed one on.

        Raises:
            UcclEpError: the change has failed, on all ranks at this step; or this one was left out (PeerLost).
        """
        with self._lock:
            self._calls += 1
            calls, pledge = self._calls, self._pledge
        if 0 <= pledge <= calls:
            self._known.wait()
        if not self._known.is_set() or calls < self._outcome.at:
            return False
        if self._outcome.failure is not None:
            raise self._outcome.failure
        return True

    def lose(self, ranks: Collection[int]) -> None:
        """These ranks are not waited for any more."""
        for rank in set(ranks) - self._lost:
            self._lost.add(rank)
            self._changes.lose(rank)

    def withdraw(self, why: str) -> bool:
        """Ends the change as far as it is this rank's to end; whether it ends in the switch all the same, as the ranks
        have agreed."""
        self._withdrawn = self._withdrawn or why
        self._known.wait()
        return self._outcome.failure is None

    def take(self) -> Life:
        """The next life, once the switch is due."""
        life, self._next = self._next, None
        assert life is not None  # it was built, and this rank does not leave
        seconds = time.monotonic() - self._begin
        session = life.session
        _log.info("rank %d of %d from now on, %.2f s after it was asked for", session.rank, session.num_ranks, seconds)
        return life

    def bill(self, present: MemoryBill) -> MemoryBill:
        """The bill of both lives, as soon as the next one is built."""
        if (life := self._next) is None:
            return present
        both = (*present.items, *(replace(item, name=f"next: {item.name}") for item in life.session.bill().items))
        return replace(present, items=both)

    def drop(self) -> None:
        """Ends the next life, now or as soon as it is built: it is not wanted."""
        self._withdrawn = self._withdrawn or "its Buffer was destroyed"
        with self._lock:
            self._abandoned = True
            life, self._next = self._next, None
        if life is not None:
            _end(life)

    def end_present(self) -> None:
        """Ends the life that this rank has left, as soon as nobody needs it to decide."""
        until = time.monotonic() + self._present.terms.settings.timeout_s
        while not self._changes.is_settled(self._numbers[1], self._left) and time.monotonic() < until:
            time.sleep(POLL_S)
        _end(self._present)

    # ---- on their own threads --------------------------------------------------------------------------------------

    def _build(self, group: Group) -> None:
        life, error = None, ""
        try:
            life = Life(group, self._terms)
        except BaseException as failure:  # noqa: BLE001 - told to the caller at the agreed step
            error = in_words(failure)
        with self._lock:
            unwanted = life if self._abandoned else None
            self._next, self._error = (None, error) if self._abandoned else (life, error)
        self._built.set()
        if unwanted is not None:
            _end(unwanted)

    def _decide(self, group: Group | None) -> None:
        try:
            if group is None:
                self._built.set()
            else:
                threading.Thread(target=self._build, args=(group,), name="uccl-ep-next-life", daemon=True).start()
            self._outcome = self._agree()
        except UcclEpError as error:
            self._outcome = _Outcome(0, error)
        except BaseException as error:  # noqa: BLE001 - told to the caller
            self._outcome = _Outcome(0, UcclEpError(f"change of members: {in_words(error)}"))
        finally:
            self._known.set()

    def _agree(self) -> _Outcome:
        patience_s = self._present.terms.settings.timeout_s
        first, second = self._numbers
        why = self._await_build()[:MAX_TEXT]
        said = self._changes.agree(set(self._lost), self._deadline_s + patience_s, why, first)
        with self._lock:
            self._pledge = self._calls + self._steps_ahead()
        gone = set(range(self._present.session.num_ranks)) - said.keys()
        pledges = self._changes.agree(self._lost | gone, patience_s, self._pledge, second)
        self._left = frozenset(pledges)
        failed = {str(reason): rank for rank, reason in sorted(said.items(), reverse=True) if reason}
        failure = None
        if failed:
            reasons = "; ".join(f"rank {rank}: {reason}" for reason, rank in reversed(failed.items()))
            failure = UcclEpError(f"the change of members has failed, and its ranks stay as they are: {reasons}")
        return _Outcome(max(int(at) for at in pledges.values()), failure)

    def _await_build(self) -> str:
        """Why there is no next life; empty: it is built, or this rank leaves."""
        while not self._built.wait(POLL_S):
            late = time.monotonic() - self._begin >= self._deadline_s
            others = [rank for rank, why in self._changes.heard(self._numbers[0]).items() if why]
            if self._withdrawn or others or late:
                break
        with self._lock:
            if self._built.is_set():
                return self._error or self._withdrawn
            self._abandoned = True
        if self._withdrawn or not others:
            return self._withdrawn or f"the next life was not built within {self._deadline_s:g} s"
        return f"it no longer waits for the next life, since rank {others[0]} has failed"

    def _steps_ahead(self) -> int:
        """Lock held."""
        rate = self._calls / max(time.monotonic() - self._begin, 1e-3)
        return min(max(_LEAST, math.ceil(rate * _AHEAD_S)), _MOST)


def _end(life: Life) -> None:
    """Ends a life that nothing is asked of any more; its fault is nobody's concern."""
    try:
        life.end()
    except UcclEpError as error:
        _log.info("a life of a Buffer that was left had ended with: %s", error)
