"""Mutants that the machine does not find, each with the reason why: it changes nothing that PTX promises, or an order
that the machine does not see.

A pattern is searched in "kernel: instruction: source line < the line that calls it < ...".
"""

from __future__ import annotations

_STREAM = "kernels of one rank run one after the other: the stream orders them"
_FAILED = "it ends a wait that has failed, or keeps a rank that has failed from starting: no row is read after it"
_HOST = "it orders the host's read of a slot before this rank overwrites it, and the machine does not see the host read"
_ONE_BLOCK = "one block of a launch does this at a time: the first, before it lets the others go on, or the last one"
_ONE_LANE = "one lane of a launch counts for a peer"
_EXCLUDED = "it leaves a peer out, from some time on; nobody reads by it what was written before it"
_REFUSED = "it finds or tells that the caller's layout is wrong: no row is sent in that call"
_AGAIN = "the word is acquired once more before a row is read: one of the two would do"
_VALUE = "only the word's own value counts: the rows are acquired by their own flags"
_TWICE = "the next barrier of the same lanes comes before anybody reads what this one orders"
_LATER = "the host waits for the barrier's end, and what it queues then knows what the host knows"
_NO_ROW = "the command names no row of this launch: what it names was released before"

KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        "relax|narrow",
        r"call\.epoch|call\.state|epochs_of|\bs\.(dispatch|combine|announcements)\b|\bp\.(consumed|ahead|told)|\ba\.epoch\b",
        _STREAM,
    ),
    ("narrow", r"identities->(calls|ticket)|a\.(geometry|settled|last)\b", _STREAM),
    ("narrow", r"st_relaxed_gpu\((ticket|arrivals|&a\.num_writes\[\w\]), 0u\)", _STREAM),
    ("narrow", r"ld_relaxed_gpu\(&a\.num_writes", "the last block reads it, behind all blocks' tickets"),
    (
        "narrow",
        r"c\.mask",
        "the host masks between launches; who sees it a call later leaves the peer out a call later",
    ),
    ("relax|narrow", r"mask_peer\(", _EXCLUDED),
    (
        "relax|narrow",
        r"context\.abort|kAbort|departed|fault->|launch_fail|fail_launch|record_fault|findings->told",
        _FAILED,
    ),
    ("relax|narrow", r"(shared\.failed|m(erge)?\.bad)\b", _FAILED),
    ("remove", r"aborted\(wait\)|launch_failed|all_see_ok|would end with the fault", _FAILED),
    ("relax|narrow", r"first\.part|claimed|by_rank\(\)|by_expert\(\)", _REFUSED),
    ("relax", r"ring\.tail|ring\.done|room = wait_until|credit_of|control_layout\.credit", _HOST),
    ("relax", r"KnownConsumed|SystemWord\{hosted\}|SystemWord\{direct\}", _HOST),
    (
        "relax",
        r"word\(c\.data\[i\], word_offset\), consumed",
        "whoever needs it has acquired a later flag of that rank",
    ),
    ("narrow", r"PeerStat::kWaitNs", _ONE_LANE),
    (
        "narrow",
        r"ring\.(head|cached_tail).*(rings\[0\]|send_weights|announce_consumed|kSpare|finish_dispatch|tell_identity|send_counts)",
        _ONE_BLOCK,
    ),
    ("narrow", r"^low_latency_combine_reduce.*ring\.(head|cached_tail).*send_expect\($", _ONE_BLOCK),
    ("relax", r"ring\.slots.*rings\[0\]", _NO_ROW),
    ("relax", r"^rank_barrier.*came", _LATER),
    ("relax", r"identities->(node|compared)|^throughput.*DeviceWord\{compared\}", _VALUE),
    ("remove", r"sync_block_and\(ok\).*await_identified", _VALUE),
    ("relax", r"ld_acquire_sys\(tail\)", _AGAIN),
)
"""(how, a pattern of kernel, instruction and source lines, why)."""
