"""Fault records as the errors that users read: who, where, what was expected, what was seen."""

from __future__ import annotations

import re

import pytest
import torch

from uccl_ep import PeerLost, PeerTimeout, SettingsMismatch, TransportError, UcclEpError
from uccl_ep._native import DetailKind, FaultKind, LayoutPart, MismatchField, RowFormat, WaitPhase
from uccl_ep.membership import fault_errors as faults

HOSTS = ["alpha", "beta", "gamma"]


def record(kind: int, **fields: int) -> dict[str, int]:
    empty = {"phase": 0, "peer": 2, "detail_kind": 0, "detail": 0, "expected": 0, "seen": 0}
    return {"kind": kind, **empty, "last_seen_ns": 0, "waited_ns": 0, **fields}


def disagreement(field: MismatchField) -> dict[str, int]:
    return {"detail_kind": DetailKind.MISMATCH_FIELD, "detail": field}


def test_faults_every_phase_has_words() -> None:
    words = [faults.phase_name(phase) for phase in WaitPhase]
    assert len(set(words)) == len(words) and not any(re.fullmatch(r"phase \d+", w) for w in words)
    assert faults.phase_name(len(WaitPhase)) == f"phase {len(WaitPhase)}"
    for phase, shown in zip(WaitPhase, words, strict=True):
        stem = phase.name.split("_")[0].lower()
        assert stem not in ("dispatch", "combine", "barrier") or stem in shown


def test_faults_timeout_says_who_where_and_how_long() -> None:
    fault = record(FaultKind.TIMEOUT, phase=3, expected=7, seen=4, waited_ns=2_500_000_000, last_seen_ns=1_250_000_000)
    error = faults.error_of(fault, 0, HOSTS)
    assert type(error) is PeerTimeout
    assert (error.rank, error.peer, error.host, error.phase) == (0, 2, "gamma", "dispatch (receive)")
    assert (error.expected, error.seen, error.waited_s, error.last_seen_s) == (7, 4, 2.5, 1.25)
    text = str(error)
    for word in ("rank 2 (host gamma)", "dispatch (receive)", "4 of 7 arrivals", "waited 2.5 s", "reported by rank 0"):
        assert word in text


def test_faults_compute_signal_names_expert_and_values() -> None:
    given = {"phase": WaitPhase.COMPUTE_SIGNAL, "peer": 0xFFFFFFFF, "detail": 5, "expected": 10, "seen": 3}
    error = faults.error_of(record(FaultKind.TIMEOUT, **given, waited_ns=1_500_000_000), 2, HOSTS)
    assert type(error) is UcclEpError
    for word in ("rank 2", "overlap=True", "waited 1.5 s", "local expert 5", "expected 10, seen 3"):
        assert word in str(error)


def test_faults_lost_peer_claims_no_arrivals() -> None:
    error = faults.error_of(record(FaultKind.PEER_LOST, expected=7, seen=4), 1, HOSTS)
    assert type(error) is PeerLost
    assert (error.expected, error.seen, error.waited_s, error.last_seen_s, error.phase) == (None,) * 5
    assert "rank 2 (host gamma) lost" in str(error)


def test_faults_a_peer_whose_rows_are_gone() -> None:
    error = faults.error_of(record(FaultKind.WITHDRAWN, phase=5), 1, HOSTS)
    assert type(error) is PeerLost and error.peer == 2
    assert "rank 2 (host gamma) lost in combine (receive): it has given up this call itself" in str(error)


@pytest.mark.parametrize("peer", [0xFFFFFFFF, 3])
def test_faults_peer_without_a_name(peer: int) -> None:
    error = faults.error_of(record(FaultKind.TIMEOUT, peer=peer, phase=7), 0, HOSTS)
    assert isinstance(error, PeerTimeout) and error.host is None
    assert ("an unknown rank" if peer == 0xFFFFFFFF else "rank 3 timed out") in str(error)


FIELDS = {  # a word of what users read, and values that have names
    MismatchField.CHANNELS: ("channels", ()),
    MismatchField.EXPERTS: ("experts", ()),
    MismatchField.TOPK: ("top-k", ()),
    MismatchField.ROW_BYTES: ("row bytes", ()),
    MismatchField.SCALE_BYTES: ("scale bytes", ()),
    MismatchField.HAS_IDS: ("topk_idx", ()),
    MismatchField.HAS_WEIGHTS: ("topk_weights", ()),
    MismatchField.RECEIVED_ROWS: ("num_worst_tokens (V2: max_recv_tokens_per_rank)", ()),
    MismatchField.MAX_TOKENS: ("num_max_dispatch_tokens_per_rank", ()),
    MismatchField.HIDDEN: ("hidden size", ()),
    MismatchField.ROW_FORMAT: ("row format", ("bf16", "fp8")),
    MismatchField.COMBINE_FORM: ("form of combine", ("direct", "node")),
    MismatchField.CALL: ("call", ("no call", "low_latency_dispatch")),
    MismatchField.ORIGIN: ("dispatch that the handle is of", ()),
    MismatchField.TAG: ("tag of the step", ()),
    MismatchField.DTYPE: ("dtype of x", ("another dtype", "uint8")),
}


def test_faults_every_field_that_ranks_may_differ_in_has_words() -> None:
    assert list(FIELDS) == list(MismatchField) == list(faults._FIELDS)


@pytest.mark.parametrize("field", MismatchField)
def test_faults_mismatch_names_the_quantity_and_both_values(field: MismatchField) -> None:
    what, names = FIELDS[field]
    for values in ((41, 43), (0, 1)):
        here, there = names if names and values == (0, 1) else values
        fault = record(FaultKind.MISMATCH, phase=6, **disagreement(field), expected=values[0], seen=values[1])
        error = faults.error_of(fault, 1, HOSTS)
        assert type(error) is SettingsMismatch
        for word in (what, "rank 1 and rank 2 (host gamma) disagree", "the count exchange"):
            assert word in str(error)
        assert f"is {here} here and {there} there" in str(error)


@pytest.mark.parametrize("there, name", [(RowFormat.NVFP4, "nvfp4"), (RowFormat.NVFP4_ROW, "nvfp4"), (15, "15")])
def test_faults_row_formats_have_callers_names(there: int, name: str) -> None:
    what = disagreement(MismatchField.ROW_FORMAT)
    fault = record(FaultKind.MISMATCH, phase=WaitPhase.DISPATCH_RECEIVE, **what, expected=1, seen=there)
    assert f"is fp8 here and {name} there" in str(faults.error_of(fault, 1, HOSTS))


def test_faults_dtypes_have_numbers_of_their_own() -> None:
    dtypes = {v for v in vars(torch).values() if isinstance(v, torch.dtype) and not v.is_complex}
    plain = {
        d
        for d in dtypes
        if not any(
            word in str(d) for word in ("qint", "quint", "bits", "int1", "int2", "int3", "int4", "int5", "int6", "int7")
        )
    }
    plain |= {torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64}
    codes = {d: faults.dtype_code(d) for d in plain}
    assert 0 not in codes.values() and len(set(codes.values())) == len(codes) and max(codes.values()) < 64


def test_faults_full_ring() -> None:
    error = faults.error_of(record(FaultKind.RING_FULL, waited_ns=3_200_000_000), 1, HOSTS)
    assert type(error) is UcclEpError
    for word in ("rank 1", "towards rank 2 (host gamma)", "full", "3.2 s"):
        assert word in str(error)


def test_faults_bad_command() -> None:
    error = faults.error_of(record(FaultKind.BAD_COMMAND, seen=5), 1, HOSTS)
    assert type(error) is UcclEpError
    for word in ("rank 1", "command for rank 2 (host gamma)", "refused (reason 5)"):
        assert word in str(error)


@pytest.mark.parametrize(
    "kind, words", [(FaultKind.TRANSPORT, "network"), (FaultKind.BAD_ARRIVAL, "no correct peer sends")]
)
def test_faults_of_the_network(kind: int, words: str) -> None:
    error = faults.error_of(record(kind, phase=5, seen=12), 0, HOSTS)
    assert type(error) is TransportError
    for word in (words, "rank 0", "rank 2 (host gamma)", "combine (receive)", "status 12"):
        assert word in str(error)


def test_faults_of_words_in_memory() -> None:
    error = faults.error_of(record(FaultKind.BAD_ARRIVAL, phase=3, expected=9, seen=77), 0, HOSTS)
    assert type(error) is TransportError
    for word in ("a word came", "rank 2 (host gamma)", "dispatch (receive)", "status 77", "exactly 9 can be"):
        assert word in str(error)
    error = faults.error_of(record(FaultKind.BAD_ARRIVAL, phase=4, expected=9, seen=77), 2, HOSTS)  # its own
    assert type(error) is UcclEpError
    for word in ("rank 2: the handle given to combine (send)", "expected 9, seen 77", "Pass it on"):
        assert word in str(error)


def test_faults_the_networks_words_are_part_of_a_loss() -> None:
    evidence = faults.Evidence("throughput_dispatch", 8, 3, 0.5, "retry exceeded: no answer from the peer")
    error = faults.error_of(record(FaultKind.PEER_LOST, seen=12), 0, HOSTS, evidence)
    assert type(error) is PeerLost and error.reason == evidence.reason
    assert "rank 2 (host gamma) lost in dispatch: retry exceeded: no answer from the peer, 3 of 8" in str(error)


@pytest.mark.parametrize("code", [0, 1, 12, 2**31 - 1, -1, -(2**31)])
def test_faults_codes_keep_their_sign(code: int) -> None:
    assert faults.code_of(record(FaultKind.PEER_LOST, seen=code % 2**64)) == code


NO_CHANNEL = None


@pytest.mark.parametrize(
    ("phase", "channel", "word", "due_and_arrived"),
    [
        (3, NO_CHANNEL, 128 << 32 | 96, (128, 96)),
        (5, NO_CHANNEL, 3 << 32, (3, 0)),
        (6, NO_CHANNEL, 7, (None, 7)),  # not yet announced how many there will be
        (3, NO_CHANNEL, None, (1, 0)),  # a peer of the node: one flag
        (3, 0, 5 << 32, (41, 40)),  # chunks of a throughput stream, as the kernel saw them
        (5, 2, None, (41, 40)),
        (2, 1, 5 << 32, (None, None)),  # a wait for room is not one for arrivals
        (9, NO_CHANNEL, None, (None, None)),
        (0, NO_CHANNEL, 5 << 32, (None, None)),
    ],
)
def test_faults_arrivals_of_each_kind_of_wait(
    phase: int, channel: int | None, word: int | None, due_and_arrived: tuple[int | None, int | None]
) -> None:
    detail = {} if channel is None else {"detail_kind": DetailKind.CHANNEL, "detail": channel}
    fault = record(FaultKind.TIMEOUT, phase=phase, **detail, expected=41, seen=40)
    asked = []

    def progress(number: int) -> int:
        asked.append(number)
        assert word is not None
        return word

    assert faults.arrivals_of(fault, None if word is None else progress) == due_and_arrived
    assert asked in ([], [{3: 0, 5: 1, 6: 2}.get(phase)])


def test_faults_evidence_goes_into_the_sentence() -> None:
    evidence = faults.Evidence("low_latency_dispatch_recv", 128, 96, 2.1)
    error = faults.error_of(record(FaultKind.PEER_LOST, phase=3), 0, HOSTS, evidence)
    assert str(error) == (
        "rank 2 (host gamma) lost in dispatch (receive): 96 of 128 arrivals, last seen 2.1 s ago, reported by rank 0"
    )
    assert isinstance(error, PeerLost) and (error.expected, error.seen) == (128, 96)
    without = faults.error_of(record(FaultKind.PEER_LOST), 0, HOSTS, faults.Evidence("throughput_combine"))
    assert str(without) == "rank 2 (host gamma) lost in combine: reported by rank 0"


def test_faults_own_silence_is_no_peers() -> None:
    error = faults.error_of(record(FaultKind.TIMEOUT, peer=1, phase=2, waited_ns=3_000_000_000), 1, HOSTS)
    assert type(error) is TransportError
    for word in ("rank 1 (host beta)", "its own half of dispatch (send)", "within 3.0 s", "stopped?"):
        assert word in str(error)


def test_faults_own_loss_is_that_of_the_proxy_process() -> None:
    error = faults.error_of(record(FaultKind.PEER_LOST, peer=1), 1, HOSTS)
    assert type(error) is TransportError and "rank 1 (host beta): its proxy process has ended" in str(error)


def test_faults_every_part_of_a_layout_has_words() -> None:
    parts = [part for part in LayoutPart if part != LayoutPart.NONE]
    texts = [str(faults.layout_error(faults.LayoutFault(part, 3, 1, 2), 1, 1, HOSTS)) for part in parts]
    assert all(text.startswith("rank 1: ") and "3" in text and "is refused" in text for text in texts)
    negative = faults.layout_error(faults.LayoutFault(5, 3, 1, (1 << 32) - 35), 1, 1, HOSTS)
    assert "num_tokens_per_expert is refused: [3] is -35, and the tokens say 1" in str(negative)


def test_faults_a_refused_layout_where_no_host_waited() -> None:
    what = {"detail_kind": DetailKind.LAYOUT_PART, "detail": LayoutPart.TOKENS_PER_RANK}
    fault = record(FaultKind.MISMATCH, phase=6, peer=1, **what, expected=7, seen=3 << 32 | 9)
    words = "num_tokens_per_rank is refused: [3] is 9, and is_token_in_rank says 7"
    assert words in str(faults.error_of(fault, 1, HOSTS))


@pytest.mark.parametrize("part, source", [(6, 0), ((1 << 32) - 1, 0), (2, 3), (2, (1 << 32) - 1)])
def test_faults_of_a_layout_whose_words_make_no_sense(part: int, source: int) -> None:
    error = faults.layout_error(faults.LayoutFault(part, 0, 0, 0), 1, source, HOSTS)
    assert type(error) is SettingsMismatch and f"rank {source}" in str(error) and "its layout disagrees" in str(error)
