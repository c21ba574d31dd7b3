"""From a native fault record to the error a user reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from uccl_ep.errors import PeerLost, PeerTimeout, SettingsMismatch, TransportError, UcclEpError

# FaultKind and WaitPhase of proxy/wire/control.h.
TIMEOUT, PEER_LOST, RING_FULL, BAD_COMMAND, MISMATCH, TRANSPORT, BAD_ARRIVAL = range(1, 8)
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
)
# What a mismatch of the count exchange is about, by the record's channel field (kernels/throughput/counts.h).
_COUNTED = (
    "number of channels (Config.num_sms // 2)",
    "number of experts",
    "top-k",
    "row bytes (hidden size times element size)",
    "scale bytes of a row",
    "presence of topk_idx",
    "presence of topk_weights",
    "rows received against num_worst_tokens",
)
_NONE = 0xFFFFFFFF


def phase_name(phase: int) -> str:
    """The words for a WaitPhase."""
    return _PHASES[phase] if phase < len(_PHASES) else f"phase {phase}"


def error_of(fault: Mapping[str, int], rank: int, hostnames: Sequence[str]) -> UcclEpError:
    """The exception for a fault record of rank `rank`."""
    peer = None if fault["peer"] == _NONE else fault["peer"]
    host = hostnames[peer] if peer is not None and peer < len(hostnames) else None
    who = f"rank {peer} (host {host})" if peer is not None else "an unknown rank"
    phase = phase_name(fault["phase"])
    kind = fault["kind"]
    if kind in (TIMEOUT, PEER_LOST):
        error = PeerTimeout if kind == TIMEOUT else PeerLost
        return error(
            rank=rank,
            peer=peer,
            host=host,
            phase=phase if fault["phase"] else None,
            expected=fault["expected"] if kind == TIMEOUT else None,
            seen=fault["seen"] if kind == TIMEOUT else None,
            waited_s=fault["waited_ns"] / 1e9 if fault["waited_ns"] else None,
            last_seen_s=fault["last_seen_ns"] / 1e9 if fault["last_seen_ns"] else None,
        )
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
    words = "the network reported an error" if kind == TRANSPORT else "a message came that no correct peer sends"
    return TransportError(f"rank {rank}: {words}, from {who} in {phase} (status {fault['seen']})")
