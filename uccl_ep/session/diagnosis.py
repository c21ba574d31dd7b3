"""What a session can say of its rank's fault: whom it is about, and what is known of that rank. Session inherits it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from uccl_ep import _native
from uccl_ep.errors import UcclEpError
from uccl_ep.fabric.facts import NIC_FAMILIES
from uccl_ep.group.handshake import Introduction
from uccl_ep.group.topology import Topology
from uccl_ep.layout.plan import MemoryPlan
from uccl_ep.layout.regions import Regions
from uccl_ep.membership.fault_errors import (
    BAD_ARRIVAL,
    BARRIER,
    FLAGS,
    PEER_LOST,
    TIMEOUT,
    TRANSPORT,
    WITHDRAWN,
    Evidence,
    arrivals_of,
    code_of,
    error_of,
    phase_name,
)
from uccl_ep.membership.roll_call import RollCall
from uccl_ep.membership.root_cause import Knowledge, root_of
from uccl_ep.recorder.recorder import FlightRecorder
from uccl_ep.settings import Settings

if TYPE_CHECKING:
    import torch

    from uccl_ep.session.proxy_link import ProxyLink

_GRACE_OF_TIMEOUT, _LEAST_GRACE_S, _MOST_GRACE_S = 0.05, 0.5, 2.0  # for the word of who waits for somebody in turn
_PATIENCE_OF_TIMEOUT, _LEAST_PATIENCE_S, _MOST_PATIENCE_S = 0.1, 2.0, 5.0  # the same, of one that says it is alive


class Witness:
    """Reads the fault record and the words beside it. The attributes are the session's."""

    rank: int
    num_ranks: int
    family: str
    absent: frozenset[int]
    settings: Settings
    topology: Topology
    plan: MemoryPlan
    regions: Regions
    roll_call: RollCall | None
    last_kernel: str
    fault_raised: bool
    _closed: bool
    _proxy: ProxyLink | None
    recorder: FlightRecorder | None = None
    introductions: list[Introduction]
    _present: list[Introduction]
    _known: tuple[dict[str, int], Evidence] | None

    @property
    def hostnames(self) -> list[str]:
        raise AttributeError("hostnames")  # Session has it

    @property
    def peer_stats(self) -> torch.Tensor:
        raise AttributeError("peer_stats")  # Session has it

    def check(self) -> None:
        """Raises this rank's fault, if it has one; after a fault every use of the buffer raises it again.

        Raises:
            PeerTimeout, PeerLost, SettingsMismatch, TransportError, UcclEpError: see uccl_ep.membership.fault_errors.
        """
        if self._closed:
            return  # an event outlived the buffer; what it waited for has ended
        fault = _native.read_fault(self.regions.control.address)
        if fault is None:
            return
        self.fault_raised = True
        if self._known is None:  # what others' words say changes when a peer that was given up goes on
            words, about = self._network_words(fault), fault["peer"]
            broken = (TRANSPORT, BAD_ARRIVAL) if self.family in NIC_FAMILIES else (TRANSPORT,)
            if fault["kind"] in broken and about < self.num_ranks:
                fault["kind"] = PEER_LOST  # the NIC has given its connection up: for this rank it is gone
            fault["peer"] = self._root(fault, self._culprit(fault))
            if fault["kind"] == WITHDRAWN and fault["peer"] != about:
                fault["kind"] = PEER_LOST  # it has given up for the loss of that one
            self._known = fault, replace(self._evidence(fault), network=words if fault["peer"] == about else "")
        if self.roll_call is not None and self.roll_call.excluded_by is not None:
            error: UcclEpError = self.roll_call.exclusion()  # whatever else it has lost: all others have lost this one
        else:
            error = error_of(self._known[0], self.rank, self.hostnames, self._known[1])
        raise error if self.recorder is None else self.recorder.noted(self, error)

    def _network_words(self, fault: Mapping[str, int]) -> str:
        """What the network's own code in a record means."""
        if fault["kind"] not in (PEER_LOST, TRANSPORT, BAD_ARRIVAL):
            return ""
        if fault["kind"] == PEER_LOST and fault["phase"] != 0:
            return ""  # a kernel that waited for this peer has put arrivals where the network's code was (wait.h)
        words = _native.explain_network_code(self.family, code_of(fault))
        return words or (f"{self.family} reported status {code_of(fault)}" if fault["kind"] == TRANSPORT else "")

    def _root(self, fault: Mapping[str, int], accused: int) -> int:
        """Whom a wait or a loss is about in the end: the accused may have waited for another rank, or have left for
        the loss of one, and says so to all. Its word is given a moment to come."""
        lost = fault["kind"] in (PEER_LOST, WITHDRAWN)
        if not (lost or fault["kind"] == TIMEOUT) or (lost and accused >= self.num_ranks):
            return accused
        if lost:
            seen = {} if accused == self.rank else self._ask(accused, accused, fault["phase"])
            root = root_of(self.rank, accused, Knowledge(seen)) if accused in seen else accused
        else:
            known = self.regions.knowledge()
            # Another rank than itself, if it can be; and who is stopped is what all waits are for, also of others.
            seen_here = accused == self.rank or (known.stopped and self.rank not in known.stopped)
            mine = root_of(self.rank, accused, known) if seen_here else accused
            seen = self._ask(None, mine, fault["phase"])
            silent = () if self.roll_call is None else self.roll_call.silent()
            heard = replace(known, accusations={**known.accusations, **seen}, silent=silent)
            root = root_of(self.rank, accused, heard)
            if self.rank in known.stopped:
                return root
        # When all others wait for this one, it was stopped for a while: recover() will tell it what they have decided.
        return accused if root == self.rank else root

    def _ask(self, whom: int | None, accused: int, phase: int) -> dict[int, int]:
        """Says whom this rank accuses; what the others say by the end of a moment, or of `whom`'s answer. Without
        `whom`, an accused that is alive gets longer to say whom it waits for itself: its wait may have begun later."""
        if self.roll_call is None:
            return {}
        timeout_s = self.settings.timeout_s
        grace_s = min(_MOST_GRACE_S, max(_LEAST_GRACE_S, _GRACE_OF_TIMEOUT * timeout_s))
        patience_s = min(_MOST_PATIENCE_S, max(_LEAST_PATIENCE_S, _PATIENCE_OF_TIMEOUT * timeout_s))
        self.roll_call.accuse(accused if accused < self.num_ranks else -1, phase_name(phase))
        if whom is None and accused < self.num_ranks:
            words = self.roll_call.follow(accused, grace_s, patience_s)
        else:
            words = self.roll_call.accusations(whom, grace_s)
        return {rank: word.peer for rank, word in words.items() if 0 <= word.peer < self.num_ranks}

    def _word(self, rank: int, offset: int) -> int:
        """A word of a control segment of this host."""
        return self.regions.control_word(rank, offset)

    def _culprit(self, fault: Mapping[str, int]) -> int:
        """Whom a record is about; a kernel knows only what it waited for."""
        peer, phase = fault["peer"], fault["phase"]
        if phase == BARRIER and peer >= self.num_ranks:  # remote ranks meet in the proxy, which noted who has come
            words = [self._word(self.rank, self.plan.control.progress(3, r)) for r in range(self.num_ranks)]
            return words.index(1 << 32) if 1 << 32 in words else peer
        if fault["kind"] == TIMEOUT and phase in FLAGS and peer < self.num_ranks and peer not in self.absent:
            # Rows of a remote rank come in at its host here. When that has not even done its own part, it is the one.
            host = self.topology.read_at(peer, self.rank)
            offset = self.plan.signals.flag(FLAGS[phase], host)
            own = self.regions.data_word(host, offset)
            if fault["channel"] >= self.plan.num_channels and own < fault["expected"]:
                return host
        return peer

    def _evidence(self, fault: Mapping[str, int]) -> Evidence:
        """What this rank and the one of its node that takes in the peer's rows know about the peer of a fault."""
        peer, control = fault["peer"], self.plan.control
        if peer >= self.num_ranks or peer in self.absent:
            return Evidence(self.last_kernel)
        host = self.topology.read_at(peer, self.rank)
        # Rows of a dispatch, and their counts, arrive at the host; everything else at the rank that waits.
        at = {0: host, 2: host}
        progress = None if host == peer else lambda p: self._word(at.get(p, self.rank), control.progress(p, peer))
        last_ns = max(self.counters()[1][peer]["last_arrival_ns"], self._word(host, control.flag_time(peer)))
        last_seen_s = (time.monotonic_ns() - last_ns) / 1e9 if last_ns else None
        return Evidence(self.last_kernel, *arrivals_of(fault, progress), last_seen_s)

    def note(self, kernel: str) -> None:
        """A kernel is about to be queued: wakes the proxy, and remembers it for reports."""
        _native.ring_doorbell(self.regions.control.address)
        self.last_kernel = kernel
        if self.recorder is not None:
            self.recorder.calls.note(kernel)

    def keep_awake(self) -> None:
        """Kernels will also run that nobody says are queued, in graphs that are replayed."""
        _native.keep_awake(self.regions.control.address)

    @property
    def life(self) -> int:
        """A number that all ranks of this Buffer have alike in this life of it."""
        return self._present[0].session

    def counters(self) -> tuple[list[dict[str, int]], list[dict[str, int]]]:
        """The proxy's counters: (per worker, per peer)."""
        return _native.read_counters(self.regions.counters.address, self.settings.proxy_threads, self.num_ranks)

    def queue_pairs(self) -> list[dict[str, int]]:
        """What each queue pair of the network has carried: lane, peer, nic, number, writes, write_bytes."""
        return [] if self._proxy is None else self._proxy.queue_pairs()
