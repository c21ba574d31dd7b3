"""A change of members: the next life of a Buffer is built beside the present one, which all ranks leave at one step.

Every rank of the present life builds, with the ranks of the next group, on a thread of its own; so do those that join,
in their constructor. Meanwhile they compare what each has prepared, and before which call (prepared.py). Another thread
makes two agreements with the present life's ranks, over its agreement service (membership/agreed_values.py), while
calls go on:

1. each that is left has built, and which life, or says why it has not: also that ranks have prepared different things;
2. each pledges one of its steps (calls of switch_members), a few ahead of where it is. The change ends at the highest.

No rank goes past its own pledge before it knows all of them, so none has gone past the highest. Where all have built,
the change ends in the switch; else all raise the same error at that step and stay as they are. What is agreed on is the
same for all that are left, whoever dies meanwhile. A rank that has switched keeps the present life's agreement service
until all others know what it knows: as long as one lives that knows, nobody decides otherwise.

A rank that has prepared nothing, and finds in switch_members() that the others did so before a call that it has made,
takes part to refuse (`Standby.refuses`), so that it raises what they raise, where they raise it. One that does not call
switch_members() is given up at the deadline: the others refuse, and it passes over what it has missed.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from uccl_ep.errors import PeerLost, UcclEpError
from uccl_ep.group.group import Group
from uccl_ep.layout.plan import MemoryBill
from uccl_ep.membership.agreed_values import MAX_TEXT, AgreedValues, Value
from uccl_ep.membership.wait_reports import POLL_S
from uccl_ep.survival.life import Life, Terms
from uccl_ep.survival.prepared import LEAVES, NOTHING, Prepared, disagreement, listed
from uccl_ep.system.os_limits import in_words

_log = logging.getLogger("uccl_ep")
_LEAST, _MOST, _AHEAD_S = 4, 1 << 16, 0.1  # steps that a pledge is ahead: about so many seconds
_MISSED = "other ranks have prepared a change that this one has not"
_PORT_S = 0.2  # between tries for a port
_GRACE_S = 1.0  # a life whose last exchange a rank has answered before it ended is built in a moment
_AGREEMENTS = 3  # of a change: what is prepared, what is built, pledges


@dataclass(frozen=True)
class _Outcome:
    """Attributes: at: the step. failure: why the ranks stay as they are; None: they switch."""

    at: int
    failure: UcclEpError | None


class Standby:
    """One change of members on one rank of the life `present`. Its threads know no Buffer.

    Args:
        group: of the next life; None: this rank leaves.
        terms: of the next life; None: this rank has prepared no change, and takes part to say so.
        masked: ranks that are not waited for.
        deadline_s: how long building may take.

    Attributes:
        captured: calls of the present life, which may go on in the next one.
        refuses, leaves: see `terms` and `group`.
    """

    def __init__(
        self, present: Life, group: Group | None, terms: Terms | None, masked: Collection[int], deadline_s: float
    ) -> None:
        self.refuses = terms is None
        self.leaves = group is None and not self.refuses
        self.captured = None if terms is None else terms.captured
        self._begin, self._deadline_s = time.monotonic(), deadline_s
        self._present, self._terms, self._changes = present, terms or present.terms, _changes_of(present)
        _pass_over(self._changes)
        self._numbers = self._changes.take_numbers(_AGREEMENTS)
        place = (NOTHING if self.refuses else LEAVES, 0) if group is None else (group.size(), group.rank())
        self._prepared = Prepared(*present.calls_made(), present.steps, *place)
        self._compared, self._disagreement, self._late = threading.Event(), "", frozenset[int]()
        self._further = 0  # steps that another rank was ahead when it prepared
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

    @staticmethod
    def is_missed(present: Life) -> bool:
        """Whether others have prepared a change before a call that this rank, which has prepared none, has made."""
        changes = _changes_of(present)
        _pass_over(changes)
        if not (heard := changes.heard(changes.number + 1)):
            return False
        present.device.begin()
        if present.device.capturing():
            return False
        mine = Prepared(*present.calls_made(), present.steps, NOTHING, 0)
        masked = present.masks.masked()
        return any(mine.is_past(Prepared.of(text)) for rank, text in heard.items() if rank not in masked)

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

    def end_present(self, life: Life) -> None:
        """Ends the life that this rank has left for `life`, as soon as nobody needs it to decide. Then tries to serve
        the host's metrics, if this rank speaks for it now and the one that did so before still had the port."""
        timeout_s = self._present.terms.settings.timeout_s
        until = time.monotonic() + timeout_s
        while not self._changes.is_settled(self._numbers[-1], self._left) and time.monotonic() < until:
            time.sleep(POLL_S)
        _end(self._present)
        until = time.monotonic() + timeout_s
        while not life.session.publish_again() and time.monotonic() < until and threading.main_thread().is_alive():
            time.sleep(_PORT_S)

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
            threading.Thread(target=self._compare, name="uccl-ep-prepared", daemon=True).start()
            if group is None:
                self._built.set()
            else:
                threading.Thread(target=self._build, args=(group,), name="uccl-ep-next-life", daemon=True).start()
            self._outcome = self._agree()
        except PeerLost as lost:
            self._outcome = _Outcome(0, self._failed(_MISSED) if self.refuses else lost)
        except UcclEpError as error:
            self._outcome = _Outcome(0, error)
        except BaseException as error:  # noqa: BLE001 - told to the caller
            self._outcome = _Outcome(0, UcclEpError(f"change of members: {in_words(error)}"))
        finally:
            self._known.set()

    def _compare(self) -> None:
        """What each has prepared. What comes of it here is told by the agreement that follows."""
        number = self._numbers[0]
        deadline_s = max(self._deadline_s, self._present.terms.settings.timeout_s)  # who is slow may be reached yet
        try:
            told = self._changes.agree(set(self._lost), deadline_s, self._prepared.as_text(), number)
            said = {rank: Prepared.of(text) for rank, text in told.items()}
            self._late = self._changes.late(number)
            if len({one.calls for one in said.values()}) > 1:
                self._further = max(one.steps for one in said.values()) - self._prepared.steps
            self._disagreement = disagreement(said, self._late, deadline_s)
        except (UcclEpError, KeyError) as error:
            _log.info("what the ranks have prepared was not compared: %s", error)
        finally:
            self._compared.set()

    def _agree(self) -> _Outcome:
        patience_s = self._present.terms.settings.timeout_s
        _, first, second = self._numbers
        why: Value = self._await_build()[:MAX_TEXT]
        if not why:
            why = 0 if self._next is None else self._next.session.life
        said = self._changes.agree(self._lost | self._late, self._deadline_s + patience_s, why, first)
        with self._lock:
            self._pledge = self._calls + self._steps_ahead()
        gone = set(range(self._present.session.num_ranks)) - said.keys()
        pledges = self._changes.agree(self._lost | gone, patience_s, self._pledge, second)
        self._left = frozenset(pledges)
        at, reasons = max(int(at) for at in pledges.values()), _reasons(said)
        if reasons and not self._withdrawn:
            self._compared.wait(self._deadline_s)  # all know the same, in a moment
        return _Outcome(at + self._further, self._failed(reasons)) if reasons else _Outcome(at, None)

    @staticmethod
    def _failed(reasons: str) -> UcclEpError:
        return UcclEpError(f"the change of members has failed, and its ranks stay as they are: {reasons}")

    def _await_build(self) -> str:
        """Why there is no next life; empty: it is built, or this rank leaves."""
        since, last = "", math.inf
        while not (self._built.wait(POLL_S) and self._compared.wait(POLL_S)):
            late = time.monotonic() - self._begin >= self._deadline_s and self._compared.is_set()
            failed = [rank for rank, why in self._changes.heard(self._numbers[1]).items() if isinstance(why, str)]
            if not since and (ended := self._ended()):
                since, last = f"{listed(ended)} ended", time.monotonic() + _GRACE_S
            if failed:
                since = f"rank {failed[0]} has failed"
            if self._withdrawn or self._disagreement or failed or late or time.monotonic() >= last:
                break
        with self._lock:
            if self._built.is_set():
                return self._error or self._disagreement or self._withdrawn
            self._abandoned = True
        late_by = f"the next life was not built within {self._deadline_s:g} s"
        no_longer = since and f"it no longer waits for the next life, since {since}"
        return self._disagreement or self._withdrawn or no_longer or late_by

    def _ended(self) -> list[int]:
        """Whose processes have ended of those that build: who leaves is not needed for the next life."""
        session, said = self._present.session, self._changes.heard(self._numbers[0])
        others = set(range(session.num_ranks)) - self._lost - {session.rank}
        leave = {rank for rank, text in said.items() if Prepared.of(text).size == LEAVES}
        return sorted(rank for rank in others - leave if session.has_gone(rank))

    def _steps_ahead(self) -> int:
        """Lock held."""
        rate = self._calls / max(time.monotonic() - self._begin, 1e-3)
        return min(max(_LEAST, math.ceil(rate * _AHEAD_S)), _MOST)


def _reasons(said: Mapping[int, Value]) -> str:
    """Why the ranks cannot switch; empty: they can. Each says its next life's number, 0 if it leaves, or why there is
    none."""
    failed = {reason: rank for rank, reason in sorted(said.items(), reverse=True) if isinstance(reason, str)}
    if failed:
        return "; ".join(f"rank {rank}: {reason}" for reason, rank in reversed(failed.items()))
    built: dict[Value, list[int]] = {}
    for rank, number in sorted(said.items()):
        built.setdefault(number, []).append(rank)
    built.pop(0, None)
    apart = " and ".join(map(listed, built.values()))
    return f"{apart} have built lives apart from each other" if len(built) > 1 else ""


def _changes_of(life: Life) -> AgreedValues:
    service = life.session.agreement_service
    assert service is not None  # a session that has started
    return service.changes


def _pass_over(changes: AgreedValues) -> None:
    """Goes on behind the last change that the others had, and that failed, without this rank."""
    for last in sorted(changes.decided_ahead()):
        over = (last - changes.number) % _AGREEMENTS == 0
        if over and any(isinstance(why, str) for why in changes.heard(last - 1).values()):
            changes.number = last


def _end(life: Life) -> None:
    """Ends a life that nothing is asked of any more; its fault is nobody's concern."""
    try:
        life.end()
    except UcclEpError as error:
        _log.info("a life of a Buffer that was left had ended with: %s", error)
