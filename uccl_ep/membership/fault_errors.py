"""From a native fault record to the error a user reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from uccl_ep.errors import InvalidArgument, PeerLost, PeerTimeout, SettingsMismatch, TransportError, UcclEpError

# FaultKind and WaitPhase of proxy/wire/control.h.
TIMEOUT, PEER_LOST, RING_FULL, BAD_COMMAND, MISMATCH, TRANSPORT, BAD_ARRIVAL, WITHDRAWN = range(1, 9)
_PHASES = (
    "an unnamed phase",
    "the command ring",
    "dispatch (send)",
    "dispatch (receive)",
    "combine (send)",
    "combine (receive)",
    "the count exchange",
    "a barrier",
    "start-up",
    "staging reuse",
    "teardown",
    "the compute signal of an expert",
    "combine (weights)",
    "combine (sums in the node)",
    "combine (receive of sums)",
)
# Of a throughput row, by the number that travels with a call (ThroughputShape in proxy/wire/identity.h).
_DTYPES = (
    "another dtype",
    *"uint8 int8 uint16 int16 uint32 int32 uint64 int64 bool float16 bfloat16 float32 float64".split(),
    *"float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2".split(),
    *"complex32 complex64 complex128".split(),
)
_CALLS = ("no call", "low_latency_dispatch", "low_latency_combine", "dispatch with a handle", "combine")
# MismatchField (proxy/wire/identity.h): what it is, and names of its values where numbers would not say them.
_FIELDS: tuple[tuple[str, Sequence[str]], ...] = (
    ("number of channels (Config.num_sms // 2)", ()),
    ("number of experts", ()),
    ("top-k", ()),
    ("row bytes (hidden size times element size)", ()),
    ("scale bytes of a row", ()),
    ("presence of topk_idx", ()),
    ("presence of topk_weights", ()),
    ("rows received against num_worst_tokens", ()),
    ("most tokens of a rank (num_max_dispatch_tokens_per_rank)", ()),
    ("hidden size", ()),
    ("row format (use_fp8, use_ue8m0, use_nvfp4, use_logfmt)", ()),
    ("form of combine (UCCL_EP_LOW_LATENCY_COMBINE, or a row format that has no sums in the node)", ("direct", "node")),
    ("call", _CALLS),
    ("dispatch that the handle is of (counted from 1)", ()),
    ("tag of the step (Buffer.set_call_tag)", ()),
    ("dtype of x", _DTYPES),
)
# Row formats by WaitPhase: of dispatch, and (any other) of combine.
_DISPATCH_FORMATS, _COMBINE_FORMATS = ("bf16", "fp8", "fp8 with ue8m0", "nvfp4"), ("bf16", "logfmt", "fp8")
_ROW_FORMAT = 10
# From here on a mismatch is about a dispatch's arguments: LayoutPart of kernels/throughput/check.h. The argument, and
# what is wrong there, by {place}, {given} and {right} (of the first: the rank).
_LAYOUT = 64
_LAYOUT_PARTS = (
    ("", ""),
    ("is_token_in_rank", "token {place} does not go to rank {right}, and topk_idx says that it does"),
    ("is_token_in_rank", "{given} tokens go to rank {place}, and topk_idx says {right}"),
    ("num_tokens_per_rank", "[{place}] is {given}, and is_token_in_rank says {right}"),
    ("num_tokens_per_rdma_rank", "[{place}] is {given}, and is_token_in_rank says {right}"),
    ("num_tokens_per_expert", "[{place}] is {given}, and the tokens say {right}"),
)
_NONE = 0xFFFFFFFF
DISPATCH_RECEIVE = 3  # WaitPhase
BARRIER = 7  # WaitPhase
COMPUTE_SIGNAL = 11  # WaitPhase
# The Phase (proxy/wire/immediate.h) whose progress word tells of a WaitPhase; barriers have that of kSpare.
_PROGRESS = {3: 0, 5: 1, 6: 2, BARRIER: 3, 12: 4, 13: 1, 14: 5}
FLAGS = {3: 0, 6: 2}  # of these, the ones whose rows are read at the source's host
_RECEIVING = (3, 5)
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
        network: the network's error code, in words.
    """

    kernel: str = ""
    expected: int | None = None
    seen: int | None = None
    last_seen_s: float | None = None
    network: str = ""


class LayoutFault(NamedTuple):
    """What of a dispatch's layout is wrong: a LayoutPart, where, and the values there."""

    part: int
    place: int
    right: int
    given: int

    @classmethod
    def of(cls, fault: Mapping[str, int]) -> LayoutFault:
        """What a record says, where no host waited for the kernel."""
        return cls(fault["channel"] - _LAYOUT, fault["seen"] >> 32, fault["expected"], fault["seen"] & _NONE)


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
    if phase in _RECEIVING and fault["channel"] != _NONE:
        return fault["expected"], fault["seen"]
    if phase not in _PROGRESS:
        return None, None
    if progress is None:
        return 1, 0
    word = progress(_PROGRESS[phase])
    return word >> 32 or None, word & 0xFFFFFFFF


def code_of(fault: Mapping[str, int]) -> int:
    """The family's code in a record of PEER_LOST or TRANSPORT: an int that travelled as 64 bits without a sign."""
    return fault["seen"] - (1 << 64) if fault["seen"] >> 63 else fault["seen"]


def phase_name(phase: int) -> str:
    """The words for a WaitPhase."""
    return _PHASES[phase] if phase < len(_PHASES) else f"phase {phase}"


def dtype_code(dtype: object) -> int:
    """The number by which ranks compare the dtype of rows."""
    name = str(dtype).removeprefix("torch.")
    return _DTYPES.index(name) if name in _DTYPES else 0


def _difference(fault: Mapping[str, int]) -> tuple[str, str, str]:
    """(what, this rank's value, the peer's) of a mismatch."""
    field = fault["channel"]
    what, names = _FIELDS[field] if field < len(_FIELDS) else (f"field {field}", ())
    if field == _ROW_FORMAT:
        names = _DISPATCH_FORMATS if fault["phase"] == DISPATCH_RECEIVE else _COMBINE_FORMATS
    here, there = (names[value] if value < len(names) else str(value) for value in (fault["expected"], fault["seen"]))
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
    if kind == PEER_LOST and peer == rank:
        return TransportError(f"rank {rank} (host {host}): its proxy process has ended")
    if kind == TIMEOUT and fault["phase"] == COMPUTE_SIGNAL:
        return UcclEpError(
            f"rank {rank}: low_latency_combine with overlap=True waited {fault['waited_ns'] / 1e9:.1f} s for the "
            f"signal of local expert {fault['channel']}: expected {fault['expected']}, seen {fault['seen']}. "
            "Who computes its rows must store it, and must be able to run beside the combine."
        )
    if kind == TIMEOUT and peer == rank:
        return TransportError(
            f"rank {rank} (host {host}): its own half of {phase} did not come within {fault['waited_ns'] / 1e9:.1f} s: "
            "was this process, or its proxy process, stopped?"
        )
    if kind in (TIMEOUT, PEER_LOST):
        if evidence is None:
            known = kind == TIMEOUT
            last_seen_s = fault["last_seen_ns"] / 1e9 or None
            evidence = Evidence("", fault["expected"] if known else None, fault["seen"] if known else None, last_seen_s)
        error = PeerTimeout if kind == TIMEOUT else PeerLost
        return error(
            rank=rank,
            peer=peer,
            host=host,
            phase=phase if fault["phase"] else _KERNELS.get(evidence.kernel),
            expected=evidence.expected,
            seen=evidence.seen,
            waited_s=fault["waited_ns"] / 1e9 or None,
            last_seen_s=evidence.last_seen_s,
            reason=evidence.network or None,
        )
    if kind == WITHDRAWN:
        reason = "it has given up this call itself, before its rows were read where they lie; its own error says why"
        return PeerLost(rank=rank, peer=peer, host=host, phase=phase, reason=reason)
    if kind == MISMATCH and _LAYOUT < fault["channel"] < _NONE:
        return layout_error(LayoutFault.of(fault), rank, fault["peer"], hostnames)
    if kind == MISMATCH:
        what, here, there = _difference(fault)
        return SettingsMismatch(f"rank {rank} and {who} disagree in {phase}: {what} is {here} here and {there} there")
    if kind == RING_FULL:
        return UcclEpError(
            f"rank {rank}: a command ring towards {who} stayed full until the deadline "
            f"({fault['waited_ns'] / 1e9:.1f} s): the proxy does not get rid of its writes"
        )
    if kind == BAD_COMMAND:
        return UcclEpError(
            f"rank {rank}: a command for {who} was refused (reason {fault['seen']}): a defect, please report"
        )
    if kind == BAD_ARRIVAL and fault["phase"]:
        return _of_a_word(fault, rank, who)
    words = "the network reported an error" if kind == TRANSPORT else "a message came that no correct peer sends"
    if evidence is not None and evidence.network:
        words += f" ({evidence.network})"
    return TransportError(f"rank {rank}: {words}, from {who} in {phase} (status {code_of(fault)})")


def layout_error(what: LayoutFault, rank: int, source: int, hostnames: Sequence[str]) -> UcclEpError:
    """Of a dispatch that rank `source` refused: it hears what is wrong, the others from whom."""
    known = 0 < what.part < len(_LAYOUT_PARTS) and source < len(hostnames)
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
