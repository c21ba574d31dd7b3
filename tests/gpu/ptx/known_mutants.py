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
_NEXT_CALL = "every rank tells its next call behind all that it has read in the last one, and that is acquired first"
_RELEASED = "the same lane has released what the command names a moment before, by the flag of its node"
_IN_ORDER = (
    "the machine plays strong stores at once and in order: it cannot miss a count that was added before a ticket"
)
_UNSEEN = "it orders a NIC's write behind reads of this node; in each play a word that came sooner has done so"
_COUNTED = "no row is read behind it in this launch; the stream orders the next one"
_AGREED = "a word goes to all lanes of the warp; what it orders another barrier orders before a row is read"
_SAME_LANE = "each lane reads what it wrote itself, or the barrier beside this one orders the rest"
_SAME_VALUE = "who reads what thread 0 has stored by then comes to the same value"
_CPU = "kernels take this way on a CPU only"
_PINNED = "a word in the host's memory: the machine refuses a narrower scope there, wherever it is executed"
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
        r"\b[ac]\.mask",
        "the host masks between launches; who sees it a call later leaves the peer out a call later",
    ),
    ("relax|narrow", r"mask_peer\(", _EXCLUDED),
    (
        "relax|narrow",
        r"context\.abort|kAbort|departed|fault->|launch_fail|fail_launch|record_fault|findings->told",
        _FAILED,
    ),
    ("relax|narrow", r"(shared\.failed|m(erge)?\.bad)\b", _FAILED),
    ("remove", r"aborted\(wait\)|launch_failed|all_see_ok|would end with the fault|tell_refusal", _FAILED),
    ("relax|narrow", r"first\.part|claimed|by_rank\(\)|by_expert\(\)", _REFUSED),
    ("relax", r"ring\.tail|ring\.done|room = wait_until|credit_of|control_layout\.credit", _HOST),
    ("relax", r"KnownConsumed|SystemWord\{hosted\}|SystemWord\{direct\}", _HOST),
    (
        "relax",
        r"word\(c\.data\[i\], word_offset\), consumed",
        "whoever needs it has acquired a later flag of that rank",
    ),
    ("narrow", r"PeerStat::kWaitNs|wait_stats|PeerStat::k(Rows|Bytes)In", _ONE_LANE),
    ("narrow", r"theirs->(shape|origin)", "the flag beside them orders them already"),
    ("relax", r"ring\.slots.*tell_identity", _RELEASED),
    ("relax", r"ring\.slots.*send_credit|slowest_head\(a\.rank, c\.source", _UNSEEN),
    ("relax", r"partial_stream\(a\.rank, a\.call\.layout, n, channel\)\.heads, p\.head", _STREAM),
    ("relax|narrow", r"drain_(stream|combine|dispatch)", _NEXT_CALL),
    ("relax", r"^low_latency_combine_reduce.*last_block", _IN_ORDER),
    ("remove|relax", r"end_identified", _COUNTED),
    ("remove", r"finish_check\(check\)|sum_counts\(a, wait, shared, epoch\)", _SAME_LANE),
    ("remove", r"^throughput_counts: barsync: simt::sync_block\(\);$", _REFUSED),
    ("remove", r"^throughput_settle: barsync: simt::sync_block\(\);$", _FAILED),
    ("remove", r"all have read it", _SAME_VALUE),
    ("remove", r"a shuffle alone orders no memory.*take_staging", _HOST),
    (
        "remove",
        r"a shuffle alone orders no memory < (if \(!warp_agree\(ticket|return warp_agree\(ok\); < if \(!send_sum)",
        _AGREED,
    ),
    ("relax", r"compare_identi", _VALUE),
    ("relax", r"^throughput_combine.*SystemWord\{tail\}, \[&\]\(u64 seen\) \{ return seen > head", _AGAIN),
    ("remove", r"open_contributions\(|reduce_(partial|own)\(", _TWICE),
    ("remove", r"^throughput_combine: barsync: simt::sync_block\(\); < (if \(!combine_for|combine_own)", _TWICE),
    ("remove", r"^low_latency_dispatch_recv: barand: return sync_block_and\(arrived\)", _TWICE),
    ("remove", r"^throughput.*a shuffle alone orders no memory", _AGREED),
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
    ("relax|narrow|remove", r"stage_batches|await_read\(", _CPU),
    ("narrow", r"room = wait_until|ring\.(tail|done|slots)|own_control|credit|came\b|SystemWord\{hosted\}", _PINNED),
)
"""(how, a pattern of kernel, instruction and source lines, why)."""
