"""The diagnosis of a rank's fault: which rank is the root cause, and what is known of that rank."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from uccl_ep import _native
from uccl_ep._native import DetailKind, FaultKind, Phase, WaitPhase
from uccl_ep.errors import UcclEpError
from uccl_ep.fabric.facts import NIC_FAMILIES
from uccl_ep.group.topology import Topology
from uccl_ep.layout.plan import MemoryPlan
from uccl_ep.layout.regions import Regions
from uccl_ep.membership.agreement_service import AgreementService
from uccl_ep.membership.fault_errors import FLAGS, Evidence, arrivals_of, code_of, error_of, phase_name
from uccl_ep.membership.root_cause import Knowledge, root_of

_GRACE_OF_TIMEOUT, _LEAST_GRACE_S, _MOST_GRACE_S = 0.05, 0.5, 2.0  # how long to wait for wait reports
_PATIENCE_OF_TIMEOUT, _LEAST_PATIENCE_S, _MOST_PATIENCE_S = (
    0.1,
    2.0,
    5.0,
)  # the same, of a rank that has answered that it is alive

_OF_OWN_RINGS = (WaitPhase.RING, WaitPhase.STAGING_REUSE, WaitPhase.BARRIER_SEND)


@dataclass
class Diagnosis:
    """Finds the root cause of a rank's fault, and what is known of it.

    Attributes:
        family, nics, absent, hostnames, topology, plan, regions, agreement_service: the session's.
        timeout_s: how long a wait lasts.
    """

    rank: int
    family: str
    nics: list[str]
    absent: frozenset[int]
    hostnames: list[str]
    topology: Topology
    plan: MemoryPlan
    regions: Regions
    agreement_service: AgreementService | None
    timeout_s: float
    _known: tuple[dict[str, int], Evidence] | None = None  # the fault, as it was when it was first raised

    def __post_init__(self) -> None:
        self.num_ranks = self.topology.num_ranks

    def error(self, fault: dict[str, int], last_kernel: str) -> UcclEpError:
        """The error of a fault record; the same whenever it is asked for, unless others have gone on without this rank.

        Args:
            fault: as _native.read_fault gives it.
            last_kernel: that was queued.
        """
        if self._known is None:  # wait reports change when a peer that was given up goes on
            words, about = self._network_words(fault), fault["peer"]
            broken = (
                (FaultKind.TRANSPORT, FaultKind.BAD_ARRIVAL) if self.family in NIC_FAMILIES else (FaultKind.TRANSPORT,)
            )
            if fault["kind"] in broken and about < self.num_ranks:
                fault["kind"] = (
                    FaultKind.PEER_LOST
                )  # the NIC has given up the connection: for this rank the peer is gone
            fault["peer"] = self._root(fault, self._root_cause(fault))
            if fault["kind"] == FaultKind.WITHDRAWN and fault["peer"] != about:
                fault["kind"] = FaultKind.PEER_LOST  # the peer has given up because it lost that rank
            evidence = self._evidence(fault, last_kernel)
            words = self._last_words(fault) or (words if fault["peer"] == about else "")
            self._known = fault, replace(evidence, reason=words or evidence.reason)
        if self.agreement_service is not None and self.agreement_service.excluded_by is not None:
            return self.agreement_service.exclusion()  # whatever this rank has lost: all others have lost this rank
        return error_of(self._known[0], self.rank, self.hostnames, self._known[1])

    def _last_words(self, fault: Mapping[str, int]) -> str:
        """What the lost rank itself has said of why it leaves; empty where it has said nothing."""
        if fault["kind"] != FaultKind.PEER_LOST or self.agreement_service is None:
            return ""
        if error := self.agreement_service.error_of(fault["peer"]):
            return f"it left by an error of its own ({error.rstrip('.')})"
        if self.agreement_service.called_by == fault["peer"]:
            return "it has called recover(), without a lost rank to name: its own log says why"
        return ""

    def _network_words(self, fault: Mapping[str, int]) -> str:
        """The network's own error code in words; empty if the record has none."""
        if fault["kind"] not in (FaultKind.PEER_LOST, FaultKind.TRANSPORT, FaultKind.BAD_ARRIVAL):
            return ""
        if fault["kind"] == FaultKind.PEER_LOST and fault["phase"] != 0:
            return ""  # a kernel that waited for this peer has put arrivals where the network's code was (wait.h)
        words = _native.explain_network_code(self.family, code_of(fault), self.nics)
        return words or (
            f"{self.family} reported status {code_of(fault)}" if fault["kind"] == FaultKind.TRANSPORT else ""
        )

    def _root(self, fault: Mapping[str, int], waited_for: int) -> int:
        """The root cause of a wait or a loss. Rank `waited_for` may itself have waited for a third one, or have left
        because it lost one; it reports that to all, and this rank waits a moment for the report."""
        lost = fault["kind"] in (FaultKind.PEER_LOST, FaultKind.WITHDRAWN)
        if not (lost or fault["kind"] == FaultKind.TIMEOUT) or (lost and waited_for >= self.num_ranks):
            return waited_for
        if lost:
            seen = {} if waited_for == self.rank else self._ask(waited_for, waited_for, fault["phase"])
            root = root_of(self.rank, waited_for, Knowledge(seen)) if waited_for in seen else waited_for
        else:
            known = self.regions.knowledge()
            # Prefers another rank to itself. A stopped rank is the root cause of all waits, whosever they are.
            seen_here = waited_for == self.rank or (known.stopped and self.rank not in known.stopped)
            mine = root_of(self.rank, waited_for, known) if seen_here else waited_for
            seen = self._ask(None, mine, fault["phase"])
            silent = () if self.agreement_service is None else self.agreement_service.silent()
            heard = replace(known, wait_reports={**known.wait_reports, **seen}, silent=silent)
            root = root_of(self.rank, waited_for, heard)
            if self.rank in known.stopped:
                return root
        # When all others wait for this one, it was stopped for a while: recover() will tell it what they have decided.
        return waited_for if root == self.rank else root

    def _ask(self, whom: int | None, waited_for: int, phase: int) -> dict[int, int]:
        """Reports that this rank has waited for `waited_for`, and returns the reports of the others: those that come
        within a moment, or until `whom` has answered. Without `whom`, a rank `waited_for` that is alive gets longer to
        report whom it waits for itself: its wait may have begun later."""
        if self.agreement_service is None:
            return {}
        timeout_s = self.timeout_s
        grace_s = min(_MOST_GRACE_S, max(_LEAST_GRACE_S, _GRACE_OF_TIMEOUT * timeout_s))
        patience_s = min(_MOST_PATIENCE_S, max(_LEAST_PATIENCE_S, _PATIENCE_OF_TIMEOUT * timeout_s))
        self.agreement_service.report_wait(waited_for if waited_for < self.num_ranks else -1, phase_name(phase))
        if whom is None and waited_for < self.num_ranks:
            words = self.agreement_service.follow(waited_for, grace_s, patience_s)
        else:
            words = self.agreement_service.wait_reports(whom, grace_s)
        return {rank: word.peer for rank, word in words.items() if 0 <= word.peer < self.num_ranks}

    def _word(self, rank: int, offset: int) -> int:
        """A word of a control segment of this host."""
        return self.regions.control_word(rank, offset)

    def _root_cause(self, fault: Mapping[str, int]) -> int:
        """The rank that a fault record is about; a kernel knows only which word it waited for."""
        peer, phase = fault["peer"], fault["phase"]
        if phase == WaitPhase.BARRIER and peer >= self.num_ranks:
            # Remote ranks meet in the proxy: it has noted who came, or awaits this rank's own writes before it begins.
            control, own = self.plan.control, self.rank
            missing = (r for r in range(self.num_ranks) if self._word(own, control.progress(Phase.SPARE, r)) == 1 << 32)
            return next((r for r in missing if not self._word(own, control.excluded(r))), self._least_taker(peer))
        if _is_for_own_rings(fault):
            return self._least_taker(peer)
        if fault["kind"] == FaultKind.TIMEOUT and phase in FLAGS and peer < self.num_ranks and peer not in self.absent:
            # Rows of a remote rank land at its landing rank here. If that has not done its own part, it is the cause.
            landing = self.topology.read_at(peer, self.rank)
            offset = self.plan.signals.flag(FLAGS[phase], landing)
            own = self.regions.data_word(landing, offset)
            if fault["detail_kind"] != DetailKind.CHANNEL and own < fault["expected"]:
                return landing
        return peer

    def _least_taker(self, waited_for: int) -> int:
        """Whom a wait for this rank's own writes is for in the end. A ring's commands end in order: who holds them up
        need not be rank `waited_for`, unless that one has not taken all either."""
        writes = self._writes_open()
        return waited_for if waited_for in writes else max(writes, key=writes.__getitem__, default=waited_for)

    def _writes_open(self) -> dict[int, int]:
        """How many writes of this rank have not arrived, by the rank that they are for."""
        peers = self.regions.read_counters()[1]
        return {rank: peer["in_flight"] for rank, peer in enumerate(peers) if peer["in_flight"]}

    def _evidence(self, fault: Mapping[str, int], last_kernel: str) -> Evidence:
        """What this rank knows of the peer of a fault, and what the rank knows where the peer's rows land."""
        peer, control = fault["peer"], self.plan.control
        if peer >= self.num_ranks or peer in self.absent:
            return Evidence(last_kernel)
        landing = self.topology.read_at(peer, self.rank)
        # Rows of a dispatch and their counts arrive at the landing rank; all else arrives at the rank that waits.
        at = {Phase.DISPATCH: landing, Phase.COUNTS: landing}
        progress = None if landing == peer else lambda p: self._word(at.get(p, self.rank), control.progress(p, peer))
        last_ns = max(
            self.regions.read_counters()[1][peer]["last_arrival_ns"], self._word(landing, control.flag_time(peer))
        )
        last_seen_s = (time.monotonic_ns() - last_ns) / 1e9 if last_ns else None
        writes = self._writes_open().get(peer, 0) if _is_for_own_rings(fault) else 0
        reason = f"{writes} write{'s' * (writes > 1)} to it did not arrive" if writes else ""
        return Evidence(last_kernel, *arrivals_of(fault, progress), last_seen_s, reason)


def _is_for_own_rings(fault: Mapping[str, int]) -> bool:
    """Whether a wait expired that was for what this rank had sent: the proxy knows to whom."""
    return fault["kind"] in (FaultKind.TIMEOUT, FaultKind.RING_FULL) and fault["phase"] in _OF_OWN_RINGS
