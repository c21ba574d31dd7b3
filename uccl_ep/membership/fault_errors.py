"""From a native fault record to the error a user reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from uccl_ep._native import (
    CallKind,
    DetailKind,
    FaultKind,
    LayoutPart,
    MismatchField,
    Phase,
    RowFormat,
    WaitPhase,
)
from uccl_ep.errors import InvalidArgument, PeerLost, PeerTimeout, SettingsMismatch, TransportError, UcclEpError

_PHASES: dict[int, str] = {
    WaitPhase.NONE: "an unnamed phase",
    WaitPhase.RING: "the command ring",
    WaitPhase.DISPATCH_SEND: "dispatch (send)",
    WaitPhase.DISPATCH_RECEIVE: "dispatch (receive)",
    WaitPhase.COMBINE_SEND: "combine (send)",
    WaitPhase.COMBINE_RECEIVE: "combine (receive)",
    WaitPhase.COUNTS: "the count exchange",
    WaitPhase.BARRIER: "a barrier",
    WaitPhase.START: "start-up",
    WaitPhase.STAGING_REUSE: "staging reuse",
    WaitPhase.TEARDOWN: "teardown",
    WaitPhase.COMPUTE_SIGNAL: "the compute signal of an expert",
    WaitPhase.COMBINE_WEIGHTS: "combine (weights)",
    WaitPhase.COMBINE_REDUCE: "combine (sums in the node)",
    WaitPhase.COMBINE_SUMS: "combine (receive of sums)",
    WaitPhase.BARRIER_SEND: "a barrier (send)",
}
# Of a throughput row, by the number that travels with a call (ThroughputShape in proxy/wire/identity.h).
_DTYPES = (
    "another dtype",
    *"uint8 int8 uint16 int16 uint32 int32 uint64 int64 bool float16 bfloat16 float32 float64".split(),
    *"float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2".split(),
    *"complex32 complex64 complex128".split(),
)
_CALLS: dict[int, str] = {
    CallKind.NONE: "no call",
    CallKind.LOW_LATENCY_DISPATCH: "low_latency_dispatch",
    CallKind.LOW_LATENCY_COMBINE: "low_latency_combine",
    CallKind.CACHED_DISPATCH: "dispatch with a handle",
    CallKind.COMBINE: "combine",
}
_FORMS = {0: "direct", 1: "node"}
_FORMATS: dict[int, str] = {int(form): form.name.lower() for form in RowFormat} | {
    RowFormat.FP8_UE8M0: "fp8 with ue8m0",
    RowFormat.NVFP4_ROW: "nvfp4",  # of a combine; kernels tell it from a dispatch's
}
# The words for a field that ranks disagree in, and names of its values where numbers would not say them.
_FIELDS: dict[int, tuple[str, Mapping[int, str]]] = {
    MismatchField.CHANNELS: ("number of channels (Config.num_sms // 2)", {}),
    MismatchField.EXPERTS: ("number of experts", {}),
    MismatchField.TOPK: ("top-k", {}),
    MismatchField.ROW_BYTES: ("row bytes (hidden size times element size)", {}),
    MismatchField.SCALE_BYTES: ("scale bytes of a row", {}),
    MismatchField.HAS_IDS: ("presence of topk_idx", {}),
    MismatchField.HAS_WEIGHTS: ("presence of topk_weights", {}),
    MismatchField.RECEIVED_ROWS: ("rows received against num_worst_tokens (V2: max_recv_tokens_per_rank)", {}),
    MismatchField.MAX_TOKENS: ("most tokens of a rank (num_max_dispatch_tokens_per_rank)", {}),
    MismatchField.HIDDEN: ("hidden size", {}),
    MismatchField.ROW_FORMAT: ("row format (use_fp8, use_ue8m0, use_nvfp4, use_mxfp8, use_logfmt)", _FORMATS),
    MismatchField.COMBINE_FORM: (
        "form of combine (UCCL_EP_LOW_LATENCY_COMBINE)",
        _FORMS,
    ),
    MismatchField.CALL: ("call", _CALLS),
    MismatchField.ORIGIN: ("dispatch that the handle is of (counted from 1)", {}),
    MismatchField.TAG: ("tag of the step (Buffer.set_call_tag)", {}),
    MismatchField.DTYPE: ("dtype of x", dict(enumerate(_DTYPES))),
}
# What of a dispatch's layout is wrong: the argument, and the words, by {place}, {given} and {right} (of the first: the
# rank).
_LAYOUT_PARTS: dict[int, tuple[str, str]] = {
    LayoutPart.LACKS_RANK: (
        "is_token_in_rank",
        "token {place} does not go to rank {right}, and topk_idx says that it does",
    ),
    LayoutPart.NAMES_RANK: ("is_token_in_rank", "{given} tokens go to rank {place}, and topk_idx says {right}"),
    LayoutPart.TOKENS_PER_RANK: ("num_tokens_per_rank", "[{place}] is {given}, and is_token_in_rank says {right}"),
    LayoutPart.TOKENS_PER_NODE: ("num_tokens_per_rdma_rank", "[{place}] is {given}, and is_token_in_rank says {right}"),
    LayoutPart.TOKENS_PER_EXPERT: ("num_tokens_per_expert", "[{place}] is {given}, and the tokens say {right}"),
}
_NONE = 0xFFFFFFFF
# The Phase whose progress word tells how far a wait has come; barriers have that of SPARE.
PROGRESS: dict[int, Phase] = {
    WaitPhase.DISPATCH_RECEIVE: Phase.DISPATCH,
    WaitPhase.COMBINE_RECEIVE: Phase.COMBINE,
    WaitPhase.COUNTS: Phase.COUNTS,
    WaitPhase.BARRIER: Phase.SPARE,
    WaitPhase.COMBINE_WEIGHTS: Phase.WEIGHTS,
    WaitPhase.COMBINE_REDUCE: Phase.COMBINE,
    WaitPhase.COMBINE_SUMS: Phase.REDUCED,
}
# Of these, the ones whose rows are read at the source's landing rank.
FLAGS: dict[int, Phase] = {WaitPhase.DISPATCH_RECEIVE: Phase.DISPATCH, WaitPhase.COUNTS: Phase.COUNTS}
_RECEIVING = (WaitPhase.DISPATCH_RECEIVE, WaitPhase.COMBINE_RECEIVE)
# Last kernel that was queued: what a rank was in when a loss ended no wait of its own.
_KERNELS = {
    "low_latency_dispatch_send": "dispatch",
    "low_latency_dispatch_recv": "dispatch",
    "low_latency_combine_send": "combine",
    "low_latency_combine_reduce": "combine",
    "low_latency_combine_recv": "combine",
    "throughput_layout": "get_dispatch_layout",
    "throughput_counts": "dispatch",
    "throughput_dispatch": "dispatch",
    "throughput_combine": "combine",
    "throughput_settle": "staging reuse",
    "rank_barrier": "a barrier",
}


@dataclass(frozen=True)
class Evidence:
    """What the reporting rank knows besides the record.

    Attributes:
        kernel: the last kernel it queued; empty: none.
        expected, seen: arrivals that were due from the peer and that had come, where they were counted.
        last_seen_s: seconds since the peer's last arrival on this node.
        reason: why the peer is gone: the network's error code in words, or what the peer itself has said.
    """

    kernel: str = ""
    expected: int | None = None
    seen: int | None = None
    last_seen_s: float | None = None
    reason: str = ""


class LayoutFault(NamedTuple):
    """What of a dispatch's layout is wrong: a LayoutPart, where, and the values there."""

    part: int
    place: int
    right: int
    given: int

    @classmethod
    def of(cls, fault: Mapping[str, int]) -> LayoutFault:
        """What a record says, where no host waited for the kernel."""
        return cls(fault["detail"], fault["seen"] >> 32, fault["expected"], fault["seen"] & _NONE)


def arrivals_of(fault: Mapping[str, int], progress: Callable[[int], int] | None) -> tuple[int | None, int | None]:
    """(due, arrived) of what the wait in a record was for.

    Args:
        fault: the record.
        progress: the progress word of a Phase for the record's peer; None for a peer of the node, whose single flag
            is all that a wait is for.

    Returns:
        Chunks of a stream since the buffer was made, or writes of one call; (None, None) in a wait for room, which
        is not one for arrivals.
    """
    phase = fault["phase"]
    if phase in _RECEIVING and fault["detail_kind"] == DetailKind.CHANNEL:
        return fault["expected"], fault["seen"]
    if phase not in PROGRESS:
        return None, None
    if progress is None:
        return 1, 0
    word = progress(PROGRESS[phase])
    return word >> 32 or None, word & 0xFFFFFFFF


def code_of(fault: Mapping[str, int]) -> int:
    """The family's code in a record of a lost peer or of the transport: an int that travelled as 64 unsigned bits."""
    return fault["seen"] - (1 << 64) if fault["seen"] >> 63 else fault["seen"]


def phase_name(phase: int) -> str:
    """The words for a WaitPhase."""
    return _PHASES.get(phase, f"phase {phase}")


def dtype_code(dtype: object) -> int:
    """The number by which ranks compare the dtype of rows."""
    name = str(dtype).removeprefix("torch.")
    return _DTYPES.index(name) if name in _DTYPES else 0


def _difference(fault: Mapping[str, int]) -> tuple[str, str, str]:
    """(what, this rank's value, the peer's) of a mismatch."""
    field = fault["detail"]
    what, names = _FIELDS.get(field, (f"field {field}", {}))
    here, there = (names.get(value, str(value)) for value in (fault["expected"], fault["seen"]))
    return what, here, there


def _of_a_word(fault: Mapping[str, int], rank: int, who: str) -> UcclEpError:
    """A kernel has read a word that cannot be: of a peer's, or of the handle that its own caller has passed on."""
    phase = phase_name(fault["phase"])
    if fault["peer"] == rank:
        return UcclEpError(
            f"rank {rank}: the handle given to {phase} is not as dispatch returned it (expected {fault['expected']}, "
            f"seen {fault['seen']}): its tensors were written to, or are another call's. Pass it on as it came."
        )
    return TransportError(
        f"rank {rank}: a word came that no correct peer sends, from {who} in {phase} (status {code_of(fault)}, at most "
        f"or exactly {fault['expected']} can be): memory was overwritten. No row of this call may be used."
    )


def error_of(
    fault: Mapping[str, int], rank: int, hostnames: Sequence[str], evidence: Evidence | None = None
) -> UcclEpError:
    """The exception for a fault record of rank `rank`; without evidence it says what the record says."""
    peer = None if fault["peer"] == _NONE else fault["peer"]
    host = hostnames[peer] if peer is not None and peer < len(hostnames) else None
    who = f"rank {peer} (host {host})" if peer is not None else "an unknown rank"
    phase = phase_name(fault["phase"])
    kind = fault["kind"]
    if kind == FaultKind.PEER_LOST and peer == rank:
        return TransportError(f"rank {rank} (host {host}): its proxy process has ended")
    if kind == FaultKind.TIMEOUT and fault["phase"] == WaitPhase.COMPUTE_SIGNAL:
        return UcclEpError(
            f"rank {rank}: low_latency_combine with overlap=True waited {fault['waited_ns'] / 1e9:.1f} s for the "
            f"signal of local expert {fault['detail']}: expected {fault['expected']}, seen {fault['seen']}. "
            "Who computes its rows must store it, and must be able to run beside the combine."
        )
    if kind == FaultKind.TIMEOUT and peer == rank:
        return TransportError(
            f"rank {rank} (host {host}): its own half of {phase} did not come within {fault['waited_ns'] / 1e9:.1f} s: "
            "was this process, or its proxy process, stopped?"
        )
    if kind in (FaultKind.TIMEOUT, FaultKind.PEER_LOST):
        if evidence is None:
            known = kind == FaultKind.TIMEOUT
            last_seen_s = fault["last_seen_ns"] / 1e9 or None
            evidence = Evidence("", fault["expected"] if known else None, fault["seen"] if known else None, last_seen_s)
        error = PeerTimeout if kind == FaultKind.TIMEOUT else PeerLost
        return error(
            rank=rank,
            peer=peer,
            host=host,
            phase=phase if fault["phase"] else _KERNELS.get(evidence.kernel),
            expected=evidence.expected,
            seen=evidence.seen,
            waited_s=fault["waited_ns"] / 1e9 or None,
            last_seen_s=evidence.last_seen_s,
            reason=evidence.reason or None,
        )
    if kind == FaultKind.WITHDRAWN:
        reason = "it has given up this call itself, before its rows were read where they lie; its own error says why"
        return PeerLost(rank=rank, peer=peer, host=host, phase=phase, reason=reason)
    if kind == FaultKind.MISMATCH and fault["detail_kind"] == DetailKind.LAYOUT_PART:
        return layout_error(LayoutFault.of(fault), rank, fault["peer"], hostnames)
    if kind == FaultKind.MISMATCH:
        what, here, there = _difference(fault)
        return SettingsMismatch(f"rank {rank} and {who} disagree in {phase}: {what} is {here} here and {there} there")
    if kind == FaultKind.RING_FULL:
        return UcclEpError(
            f"rank {rank}: a command ring towards {who} stayed full until the deadline "
            f"({fault['waited_ns'] / 1e9:.1f} s): the proxy does not get rid of its writes"
        )
    if kind == FaultKind.BAD_COMMAND:
        return UcclEpError(
            f"rank {rank}: a command for {who} was refused (reason {fault['seen']}): a defect, please report"
        )
    if kind == FaultKind.BAD_ARRIVAL and fault["phase"]:
        return _of_a_word(fault, rank, who)
    words = (
        "the network reported an error" if kind == FaultKind.TRANSPORT else "a message came that no correct peer sends"
    )
    if evidence is not None and evidence.reason:
        words += f" ({evidence.reason})"
    return TransportError(f"rank {rank}: {words}, from {who} in {phase} (status {code_of(fault)})")


def layout_error(what: LayoutFault, rank: int, source: int, hostnames: Sequence[str]) -> UcclEpError:
    """Of a dispatch that rank `source` refused: it hears what is wrong, the others from whom."""
    known = what.part in _LAYOUT_PARTS and source < len(hostnames)
    argument, words = _LAYOUT_PARTS[what.part] if known else ("layout", "")
    if source != rank or not known:
        who = f"rank {source}" + (f" (host {hostnames[source]})" if known else "")
        return SettingsMismatch(
            f"rank {rank}: {who} refused this dispatch, since its {argument} disagrees with the rest of its topk_idx, "
            "num_tokens_per_rank, num_tokens_per_rdma_rank, num_tokens_per_expert and is_token_in_rank; its own error "
            "says where"
        )
    given = what.given - (what.given >> 31 << 32)
    shown = words.format(place=what.place, given=given, right=what.right)
    return InvalidArgument(
        f"rank {rank}: {argument} is refused: {shown}. Pass on what get_dispatch_layout returned for this topk_idx, "
        "unchanged. The other ranks refuse this dispatch too.",
        argument=argument,
        allowed="what get_dispatch_layout returned",
    )
