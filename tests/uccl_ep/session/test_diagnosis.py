"""Whom a fault is about, from the record and the words beside it: with fakes in the place of memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from uccl_ep import PeerLost, PeerTimeout, TransportError, UcclEpError, _native
from uccl_ep._native import FaultKind, WaitPhase
from uccl_ep.group.topology import NO_NODE, Topology
from uccl_ep.membership.root_cause import Knowledge
from uccl_ep.membership.wait_reports import WaitReport
from uccl_ep.session.diagnosis import Diagnosis

NONE = 0xFFFFFFFF


def diagnosis_of(
    topology: Topology, rank: int, writes_open: tuple[int, ...] = (), **words: dict[tuple[int, int], int]
) -> Any:
    """A rank's witness; words by (rank, offset), 0 where nothing is said. `writes_open`: by rank; empty: none."""
    absent = frozenset(r for r, node in enumerate(topology.node_of) if node == NO_NODE)
    control, signals = _native.ControlLayout(), _native.SignalLayout()
    control.num_ranks, control.num_channels = topology.num_ranks, 2
    signals.num_ranks, signals.num_channels, signals.max_readers = topology.num_ranks, 2, 2
    plan: Any = SimpleNamespace(control=control, signals=signals, num_channels=2)
    open_ = writes_open or (0,) * topology.num_ranks
    regions: Any = SimpleNamespace(
        control_word=lambda r, offset: words.get("control", {}).get((r, offset), 0),
        data_word=lambda r, offset: words.get("data", {}).get((r, offset), 0),
        read_counters=lambda: ([], [{"last_arrival_ns": 0, "in_flight": n} for n in open_]),
        knowledge=Knowledge,
    )
    nics = ["mlx5_0:1", "mlx5_3:1"]
    return Diagnosis(rank, "verbs", nics, absent, list("aabb"), topology, plan, regions, None, timeout_s=100.0)


def fault(**changes: int) -> dict[str, int]:
    blank = {"kind": FaultKind.TIMEOUT, "phase": 0, "peer": NONE, "detail_kind": 0, "detail": 0}
    return {**blank, "expected": 0, "seen": 0, "last_seen_ns": 0, "waited_ns": 0, **changes}


def test_diagnosis_names_who_is_missing_at_a_barrier() -> None:
    two = Topology((0, 0, 1, 1))
    layout = diagnosis_of(two, 0).plan.control
    one = diagnosis_of(two, 0, control={(0, layout.progress(3, 2)): 1 << 32 | 1, (0, layout.progress(3, 3)): 1 << 32})
    assert one._root_cause(fault(phase=WaitPhase.BARRIER)) == 3
    assert diagnosis_of(two, 0)._root_cause(fault(phase=WaitPhase.BARRIER)) == NONE  # nobody was noted
    assert diagnosis_of(two, 0, (0, 0, 2, 0))._root_cause(fault(phase=WaitPhase.BARRIER)) == 2  # behind rows to rank 2
    left_out = {(0, layout.progress(3, 3)): 1 << 32, (0, layout.excluded(3)): 1}  # noted when that was not yet so
    assert diagnosis_of(two, 0, (0, 0, 2, 0), control=left_out)._root_cause(fault(phase=WaitPhase.BARRIER)) == 2
    assert one._root_cause(fault(phase=WaitPhase.BARRIER, peer=1)) == 1  # a rank of the node


@pytest.mark.parametrize(
    ("phase", "waited_for", "named"),
    [
        (WaitPhase.BARRIER_SEND, NONE, 3),  # the one that takes least
        (WaitPhase.STAGING_REUSE, NONE, 3),
        (WaitPhase.STAGING_REUSE, 2, 2),
        (WaitPhase.STAGING_REUSE, 1, 3),  # rank 1 has taken all: its row's turn in the ring is behind rank 3's
        (WaitPhase.COMBINE_RECEIVE, 1, 1),  # no wait for this rank's own writes
    ],
)
def test_diagnosis_of_a_wait_for_its_own_writes_names_who_does_not_take_them(
    phase: int, waited_for: int, named: int
) -> None:
    one = diagnosis_of(Topology((0, 1, 2, 3)), 0, (0, 0, 1, 5))
    found = raised(one, fault(phase=phase, peer=waited_for, waited_ns=10**9))
    assert isinstance(found, PeerTimeout) and found.peer == named
    writes = {2: "1 write to it did not arrive", 3: "5 writes to it did not arrive"}
    assert found.reason == writes.get(named)
    nobody = raised(diagnosis_of(Topology((0, 1)), 0), fault(phase=WaitPhase.BARRIER_SEND))
    assert isinstance(nobody, PeerTimeout) and nobody.peer is None


def test_diagnosis_of_a_full_ring_names_who_does_not_take_its_writes() -> None:
    full = fault(kind=FaultKind.RING_FULL, phase=WaitPhase.RING, peer=1)
    assert "towards rank 3 (host b)" in str(raised(diagnosis_of(Topology((0, 0, 1, 1)), 0, (0, 0, 1, 5)), full))
    refused = fault(kind=FaultKind.BAD_COMMAND, phase=WaitPhase.RING, peer=1)
    assert "rank 1" in str(raised(diagnosis_of(Topology((0, 0, 1, 1)), 0, (0, 0, 1, 5)), refused))


def test_diagnosis_names_the_host_that_has_not_done_its_own_part() -> None:
    two = Topology((0, 0, 1, 1))
    phase = 3  # dispatch (receive): rows of rank 3 come in at rank 1
    flag = diagnosis_of(two, 0).plan.signals.flag(0, 1)
    assert diagnosis_of(two, 0)._root_cause(fault(phase=phase, peer=3, expected=5)) == 1
    assert diagnosis_of(two, 0, data={(1, flag): 5})._root_cause(fault(phase=phase, peer=3, expected=5)) == 3
    apart = Topology((0, 0, 1, 1), apart=True)  # they come in here, and this rank has done its part
    own = diagnosis_of(apart, 0).plan.signals.flag(0, 0)
    assert diagnosis_of(apart, 0, data={(0, own): 5})._root_cause(fault(phase=phase, peer=3, expected=5)) == 3


def raised(made: Any, found: dict[str, int]) -> UcclEpError:
    """The error that a rank's check() raises for a record."""
    error: UcclEpError = made.error(dict(found), "throughput_combine")
    return error


@pytest.mark.parametrize("kind", [FaultKind.PEER_LOST, FaultKind.TRANSPORT, FaultKind.BAD_ARRIVAL])
def test_diagnosis_a_network_error_is_a_lost_peer_in_the_networks_words(
    monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    words = lambda family, code, nics: f"{family} code {code}" if code else ""  # noqa: E731
    monkeypatch.setattr(_native, "explain_network_code", words)
    error = raised(world(), fault(kind=kind, peer=2, seen=-5 % 2**64))
    assert isinstance(error, PeerLost) and (error.peer, error.reason) == (2, "verbs code -5")
    quiet = raised(world(), fault(kind=kind, peer=2))
    assert isinstance(quiet, PeerLost) and quiet.reason == (
        "verbs reported status 0" if kind == FaultKind.TRANSPORT else None
    )


def test_diagnosis_a_network_error_names_the_nic() -> None:
    retries = 2 << 24 | 0x10000 | 12  # transport/transport.h, transport/verbs/errors.h
    error = raised(world(), fault(kind=FaultKind.TRANSPORT, peer=2, seen=retries))
    assert isinstance(error, PeerLost) and error.reason is not None
    assert error.reason.startswith("mlx5_3:1: transport retry counter exceeded")


def test_diagnosis_arrivals_in_a_record_of_a_loss_are_no_network_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that waited for the lost peer has put its phase and what had arrived into the record."""
    monkeypatch.setattr(_native, "explain_network_code", lambda family, code, nics: f"code {code}")
    error = raised(world(), fault(kind=FaultKind.PEER_LOST, phase=3, peer=2, seen=124, expected=125))
    assert isinstance(error, PeerLost) and (error.peer, error.reason) == (2, None)


def test_diagnosis_a_message_no_peer_sends_is_no_loss_without_a_nic() -> None:
    made = world()
    made.family = "tcp"
    error = raised(made, fault(kind=FaultKind.BAD_ARRIVAL, peer=2, seen=71))
    assert isinstance(error, TransportError) and "no correct peer sends (Protocol error)" in str(error)


def test_diagnosis_a_network_error_without_a_peer_is_no_loss() -> None:
    error = raised(world(), fault(kind=FaultKind.TRANSPORT, seen=12))
    assert isinstance(error, TransportError) and "status 12" in str(error)


def test_diagnosis_words_about_one_rank_are_not_said_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 2 has left because it lost rank 3: its connection's end says nothing of rank 3's."""
    made = world()
    monkeypatch.setattr(_native, "explain_network_code", lambda family, code, nics: "connection reset")
    monkeypatch.setattr(made, "_root", lambda found, waited_for: 3)
    error = raised(made, fault(kind=FaultKind.PEER_LOST, peer=2, seen=104))
    assert isinstance(error, PeerLost) and (error.peer, error.reason) == (3, None)


def test_diagnosis_a_rank_that_left_by_an_error_of_its_own_says_by_which(monkeypatch: pytest.MonkeyPatch) -> None:
    made = world()
    made.agreement_service = SimpleNamespace(
        error_of={2: "ValueError: no such file."}.get, excluded_by=None, called_by=2
    )
    monkeypatch.setattr(made, "_root", lambda found, waited_for: waited_for)
    lost = raised(made, fault(kind=FaultKind.PEER_LOST, peer=2))
    assert isinstance(lost, PeerLost) and "it left by an error of its own (ValueError: no such file)" in str(lost)
    late = world()
    late.agreement_service = made.agreement_service
    monkeypatch.setattr(late, "_root", lambda found, waited_for: waited_for)
    assert "left by" not in str(raised(late, fault(kind=FaultKind.TIMEOUT, peer=2)))  # it is there, and late


def test_diagnosis_says_the_same_of_a_fault_whenever_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others' words say of it changes when they go on."""
    made, roots = world(), [3, 2]
    monkeypatch.setattr(made, "_root", lambda found, waited_for: roots.pop(0))
    errors = [raised(made, fault(kind=FaultKind.PEER_LOST, peer=2)) for _ in range(2)]
    assert [getattr(error, "peer", None) for error in errors] == [3, 3] and roots == [2]


def world() -> Any:
    """Rank 0 of two nodes, on a network."""
    return diagnosis_of(Topology((0, 0, 1, 1)), 0)


def test_diagnosis_knows_nothing_of_absent_ranks() -> None:
    one = diagnosis_of(Topology((0, NO_NODE, 1)), 0)
    assert one._root_cause(fault(phase=3, peer=1, expected=2)) == 1
    evidence = one._evidence(fault(kind=FaultKind.PEER_LOST, peer=1), "throughput_combine")
    assert (evidence.kernel, evidence.expected, evidence.seen, evidence.last_seen_s) == (
        "throughput_combine",
        None,
        None,
        None,
    )


class Words:
    """An agreement service that has heard this, and remembers what it was asked."""

    quiet: tuple[int, ...] = ()

    def __init__(self, **said: int) -> None:
        self.told: list[int] = []
        self.asked: list[int | None] = []
        self._said = {int(rank[1:]): WaitReport(peer, "") for rank, peer in said.items()}

    def report_wait(self, peer: int, reason: str) -> None:
        self.told.append(peer)

    def silent(self) -> set[int]:
        return set(self.quiet)

    def wait_reports(self, of: int | None, grace_s: float) -> dict[int, WaitReport]:
        assert 0.0 < grace_s <= 2.0
        self.asked.append(of)
        return self._said

    def follow(self, waited_for: int, grace_s: float, patience_s: float) -> dict[int, WaitReport]:
        assert 0.0 < grace_s <= 2.0 <= patience_s <= 5.0
        self.asked.append(-1 - waited_for)
        return self._said


NOTHING = Knowledge()


def heard(rank: int, words: Words, known: Knowledge = NOTHING) -> Any:
    one = diagnosis_of(Topology((0, 0, 1, 1)), rank)
    one.agreement_service = words
    one.regions.knowledge = lambda: known
    return one


def test_diagnosis_follows_wait_reports_of_other_hosts_and_says_its_own() -> None:
    words = Words(r1=2, r2=3, r0=-1)
    assert heard(0, words)._root(fault(phase=3), 1) == 3
    assert (words.told, words.asked) == ([1], [-2])  # a wait that expired: everybody's may have, rank 1's a bit later
    assert heard(0, Words())._root(fault(phase=3), 1) == 1
    assert heard(0, Words(r1=2), Knowledge({2: 3}))._root(fault(phase=3), 1) == 3  # together with what it sees itself
    assert heard(0, Words(r1=2), Knowledge(stopped=[1]))._root(fault(phase=3), 1) == 1


def test_diagnosis_that_sees_a_stopped_rank_says_that_one_whichever_of_its_waits_ended_first() -> None:
    words = Words(r2=0)  # it waits for this rank, which has named another wait than the one that holds all up
    assert heard(0, words, Knowledge(stopped=[1]))._root(fault(phase=3), 2) == 1
    assert (words.told, words.asked) == ([1], [-2])


def test_diagnosis_of_a_circle_names_who_does_not_answer() -> None:
    words = Words(r2=0)
    words.quiet = (1, 3)
    assert heard(0, words, Knowledge({0: 2}, (), {2: 300, 3: 500}))._root(fault(phase=3), 2) == 3
    words.quiet = ()
    assert heard(0, words, Knowledge({0: 2}, (), {2: 300, 3: 500}))._root(fault(phase=3), 2) == 2


def test_diagnosis_whose_own_half_did_not_come_names_the_rank_of_another_host_that_is_silent() -> None:
    words = Words()
    assert heard(0, words, Knowledge({}, (), {2: 500, 3: 400}))._root(fault(phase=4), 0) == 3
    assert words.told == [3]  # itself would help nobody who waits for this rank
    assert heard(0, Words(r2=2), Knowledge({}, (), {2: 300, 3: 400}))._root(fault(phase=4), 0) == 2


def test_diagnosis_of_a_loss_asks_the_lost_rank_for_its_reason() -> None:
    words = Words(r1=2)
    assert heard(0, words)._root(fault(kind=FaultKind.PEER_LOST), 1) == 2  # it left because it had lost rank 2
    assert (words.told, words.asked) == ([1], [1])
    assert heard(0, Words(r3=2))._root(fault(kind=FaultKind.PEER_LOST), 1) == 1  # it said nothing: it is the one
    assert heard(0, Words(r0=0))._root(fault(kind=FaultKind.PEER_LOST), 0) == 0  # its own proxy


def test_diagnosis_that_all_others_wait_for_does_not_name_itself() -> None:
    assert heard(0, Words(r1=0, r2=0))._root(fault(phase=3), 1) == 1
    assert heard(0, Words(r1=0))._root(fault(kind=FaultKind.PEER_LOST), 1) == 1
    assert heard(0, Words(r1=0), Knowledge(stopped=[0]))._root(fault(phase=3), 1) == 0  # its own proxy is stopped


def test_diagnosis_that_does_not_know_whom_it_waited_for() -> None:
    words = Words()
    assert heard(0, words)._root(fault(phase=WaitPhase.BARRIER), NONE) == NONE and (words.told, words.asked) == (
        [-1],
        [None],
    )
    assert (
        heard(0, Words(), Knowledge(stopped=[0]))._root(fault(phase=WaitPhase.BARRIER), NONE) == 0
    )  # its own proxy is stopped


def test_diagnosis_of_other_faults_asks_nobody() -> None:
    words = Words(r1=2)
    assert heard(0, words)._root(fault(kind=FaultKind.MISMATCH), 1) == 1
    assert heard(0, words)._root(fault(kind=FaultKind.PEER_LOST), NONE) == NONE
    assert words.told == [] and words.asked == []
