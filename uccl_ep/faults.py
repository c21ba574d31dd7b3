"""From a native fault record to the error a user reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from uccl_ep.errors import PeerLost, PeerTimeout, SettingsMismatch, TransportError, UcclEpError

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
# What a mismatch is about, by the record's channel field (kernels/throughput/counts.h; the last and top-k also
# kernels/low_latency/combine_reduce.h).
_COUNTED = (
    "number of channels (Config.num_sms // 2)",
    "number of experts",
    "top-k",
    "row bytes (hidden size times element size)",
    "scale bytes of a row",
    "presence of topk_idx",
    "presence of topk_weights",
    "rows received against num_worst_tokens",
    "most tokens of a rank (num_max_dispatch_tokens_per_rank)",
)
_NONE = 0xFFFFFFFF
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
    if kind == MISMATCH:
        channel = fault["channel"]
        what = _COUNTED[channel] if channel < len(_COUNTED) else "hidden size or row format"
        return SettingsMismatch(
            f"rank {rank} and {who} disagree in {phase}: {what} is {fault['expected']} here and {fault['seen']} there"
        )
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
