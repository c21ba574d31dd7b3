"""How a rank that was left out of low-latency calls takes part again, in place: an unmask where calls were missed.

Both ranks of a pair say how far they are (membership/returns.py). The one that is behind takes over the other's
numbers, so that calls it missed count as received; it goes on with the ranks that the other one goes on with, and
leaves out the rest. Each then makes sure that nothing it sent before is on its way, tells its proxy which epoch it
counts from, and only then says that it is ready. So nothing from before the return can be taken for what comes after
it, whenever either begins; and a pair of which one is not ready by the deadline stays masked, on both sides.

A rank that stood still need not ask: its next call finds what the others have offered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

import torch

from uccl_ep import _native
from uccl_ep.device.protocol import Device
from uccl_ep.low_latency.launch import LowLatency
from uccl_ep.low_latency.progress import Progress
from uccl_ep.membership.returns import Offer
from uccl_ep.session.barrier import Collective
from uccl_ep.session.session import Session

_POLL_S = 0.001
_DISPATCH, _COMBINE, _ANNOUNCED = _native.Phase.DISPATCH, _native.Phase.COMBINE, _native.Phase.SPARE
_SHARE = 2  # of the timeout that a call waits for ranks that come back: others may already wait for this one


class Returning:
    """The ranks that come back to one rank, in one life of its Buffer.

    Args:
        unmask: takes a rank's mask away.
    """

    def __init__(
        self,
        session: Session,
        device: Device,
        low_latency: LowLatency,
        collective: Collective,
        unmask: Callable[[int], None],
    ) -> None:
        self._session, self._device, self._low_latency = session, device, low_latency
        self._collective, self._unmask = collective, unmask
        self._wanted: set[int] = set()
        self._looked = 0  # at so much of what others have said
        service = session.agreement_service
        assert service is not None  # a session that has started
        self._returns = service.returns
        self._returns.begin(session.life)
        self._agreed, self._changes = service.agreed_masks, service.changes
        session.settle = self.settle

    def ask(self, ranks: set[int]) -> None:
        """Masked ranks that have missed calls are to take part from this rank's next call on. Returns when they have
        been told, so that whoever hears of this call may make its next one; or when half the timeout has passed."""
        self._wanted |= ranks
        self._offer(ranks, self._counts(), self._company(self._wanted))
        deadline, news = time.monotonic() + self._session.settings.timeout_s / _SHARE, -1
        while news != self._returns.news or self._returns.wait(news, deadline):
            news = self._returns.news
            if all(self._returns.is_heard(rank) for rank in ranks):
                return

    def cancel(self, rank: int) -> None:
        """No longer."""
        self._wanted.discard(rank)
        self._returns.forget(rank)

    def agree(self, masked: Collection[int], deadline_s: float) -> frozenset[int]:
        """Whom all ranks that are left mask from now on (membership/agreed_values.py)."""
        return frozenset(range(self._session.num_ranks)) - self._agreed.agree(masked, deadline_s).keys()

    def settle(self) -> None:
        """Before a call: meets those that come back, and whoever has offered to this rank. Who is not ready in half the
        timeout stays masked, or is masked.

        Raises:
            NotSupported: in a graph capture, which cannot wait for them.
        """
        news = self._returns.news
        if not self._wanted and news == self._looked:
            return
        self._looked = news
        offered = self._returns.heard.keys() - self._masked()
        if not self._wanted and not offered:
            return
        self._device.begin()
        self._device.check_host_wait()
        for rank in self._meet(self._wanted | offered):
            self._unmask(rank)
        self._wanted.clear()
        self._device.finish()

    def _meet(self, wanted: set[int]) -> set[int]:
        """Those that are together with this rank by the deadline. All of `wanted` are masked until then."""
        deadline = time.monotonic() + self._session.settings.timeout_s / _SHARE
        counts, together, caught_up = self._counts(), set[int](), False
        for rank in wanted:
            self._session.leave_out(rank, True)
        while wanted - together:
            news = self._returns.news
            company = self._company(wanted)
            if caught_up:  # nobody follows this rank
                wanted |= self._theirs(wanted, counts)
                company = frozenset({self._session.rank})
            self._offer(wanted - together, counts, company)
            for rank in sorted(wanted - together):
                offer = self._returns.heard.get(rank)
                if offer is None or self._returns.is_ready_for(rank):
                    continue
                if self._is_behind(counts, offer):
                    self._catch_up(offer)
                    counts, together, caught_up = self._counts(), set(), True
                    break
                if self._alike(counts, offer) and self._expect(rank, offer, deadline):
                    self._returns.say_ready(rank, offer)
            else:
                together |= {r for r in wanted if self._returns.together(r)}
                gone = {r for r in wanted if self._session.has_gone(r)}
                wanted, together = wanted - gone, together - gone
                if wanted - together and not self._returns.wait(news, deadline):
                    break
        for rank in wanted:
            self._returns.forget(rank)
        return together

    # ---- what is told ----------------------------------------------------------------------------------------------

    def _counts(self) -> tuple[int, ...]:
        return *self._low_latency.progress(), self._collective.round, self._agreed.number, self._changes.number

    def _company(self, wanted: set[int]) -> frozenset[int]:
        return frozenset(set(range(self._session.num_ranks)) - self._masked() | wanted)

    def _masked(self) -> set[int]:
        return set(self._session.mask.nonzero().flatten().tolist())

    def _offer(self, ranks: set[int], counts: tuple[int, ...], company: frozenset[int]) -> None:
        for rank in sorted(ranks):
            self._returns.offer(rank, counts, company)

    # ---- what is made of it ----------------------------------------------------------------------------------------

    @staticmethod
    def _calls(counts: tuple[int, ...]) -> tuple[int, ...]:
        """What a pair must have alike: dispatches, combines, those reduced, barriers, agreements of both kinds."""
        return *counts[:3], *counts[9:]

    def _alike(self, counts: tuple[int, ...], offer: Offer) -> bool:
        same_sizes = counts[6:9] == offer.counts[6:9]
        return same_sizes and self._calls(counts) == self._calls(offer.counts)

    def _is_behind(self, counts: tuple[int, ...], offer: Offer) -> bool:
        """Whether this rank can take over the other's numbers: it is nowhere further, and owes no receiving half. Their
        sizes are the same, or this rank has made no call."""
        if len(offer.counts) != len(counts) or (any(counts[6:9]) and counts[6:9] != offer.counts[6:9]):
            return False
        mine, theirs = self._calls(counts), self._calls(offer.counts)
        received = (counts[3], counts[4]) == (counts[0], counts[1])
        return received and mine != theirs and all(a <= b for a, b in zip(mine, theirs, strict=True))

    def _catch_up(self, offer: Offer) -> None:
        """Takes over the other's numbers. Who is not met now is left out."""
        self._low_latency.take_over(Progress(*offer.counts[:9]))
        self._collective.round, self._agreed.number, self._changes.number = offer.counts[9:]
        for rank in set(range(self._session.num_ranks)) - {self._session.rank}:
            self._session.leave_out(rank, True)

    def _theirs(self, wanted: set[int], counts: tuple[int, ...]) -> set[int]:
        """Whom those go on with that are where this rank now is."""
        offers = [self._returns.heard.get(rank) for rank in wanted]
        company = set[int]().union(*(o.company for o in offers if o is not None and self._alike(counts, o)))
        return {r for r in company - self._session.absent - {self._session.rank} if not self._session.has_gone(r)}

    def _expect(self, rank: int, offer: Offer, deadline: float) -> bool:
        """Whether nothing of before is on its way to the rank; then what comes from it counts from its offer on."""
        session = self._session
        local = session.topology.node_of[rank] == session.topology.node_of[session.rank]
        if not local:
            while not session.rings_idle():
                if time.monotonic() >= deadline:
                    return False
                time.sleep(_POLL_S)
            if session.has_gone(rank):
                return False
        theirs = Progress(*offer.counts[:9])
        consumed = {_DISPATCH: theirs.received_dispatches, _COMBINE: theirs.received_combines}
        control, signals = session.plan.control, session.plan.signals
        words = session.regions.control_words(session.rank)
        for phase, epoch in consumed.items():
            if local:
                at = signals.consumed(phase, rank)
                session.data[at : at + 8].view(torch.int64)[0] = epoch
            else:
                words[control.consumed(phase, rank) // 8] = epoch
        if not local:
            resume = {
                _DISPATCH: theirs.dispatches,
                _COMBINE: theirs.combines - theirs.reduced,
                _ANNOUNCED: theirs.announcements,
            }
            for phase, epoch in resume.items():
                words[control.resume(phase, rank) // 8] = epoch
            session.leave_out(rank, True)  # which releases what was written
        self._device.catch_up()
        return True
