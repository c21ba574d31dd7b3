"""Mutants that the machine does not find, each with the reason why: it changes nothing that PTX promises, or an order
that the machine does not see.

A pattern is searched in a text of lines: "kernel: instruction: source line", then the line that calls it, and so on. So
`^.*` and `.*` stay in a line; what else stands in a text says nothing of the instruction.
"""

from __future__ import annotations

_MASK = "this GPU's kernels write the mask, or copies between launches; who sees it later leaves the peer out later"
_FAILED = "it ends a wait that has failed, or keeps a rank that has failed from starting: no row is read after it"
_BARRIER = "a barrier of the block stands between the word and whoever reads it"
_HOST = "it orders the host's read of a slot before this rank overwrites it, and the machine does not see the host read"
_ONE_BLOCK = "one block of a launch does this at a time: the first, before it lets the others go on, or the last one"
_ONE_LANE = "one lane of a launch counts for a peer"
_EXCLUDED = "it leaves a peer out, from some time on; nobody reads by it what was written before it"
_REFUSED = "it finds or tells that the caller's layout is wrong: no row is sent in that call"
_AGAIN = "the word is acquired once more before a row is read or written: one of the two would do"
_GATE = "only the word's own value counts: what is read after it has flags of its own"
_TWICE = "a barrier of the same lanes follows, or has come before, with nothing to order between them"
_TAKEN_ALONG = "the machine lets a lane's release take all stores along for words stored later too: PTX needs this one"
_UNSEEN = "it orders a NIC's write behind reads of this node, and the machine does not see when a NIC writes"
_AGREED = "a word goes to all lanes of the warp; what it orders another barrier orders before a row is read"
_FLAG = "the flag beside them, which has been acquired, orders them"
_REPORTS = "only the host's reports read the word, and after the call"
_CPU = "kernels take this way on a CPU only"
_PINNED = "a word in the host's memory: the machine refuses a narrower scope there, wherever it is executed"
_NO_ROW = "the command names no row of this launch: what it names was released before"

KNOWN: tuple[tuple[str, str, str], ...] = (
    ("narrow", r"^.*\b[ac]\.mask\b", _MASK),
    ("relax|narrow", r"^.*\n.*mask_peer\(", _EXCLUDED),
    (
        "relax|narrow",
        r"^.*(context\.abort|context\.departed|fault->|fail_launch|record_fault|findings->told)",
        _FAILED,
    ),
    ("relax", r"^.*bool launch_failed\(", "a barrier orders it behind the words with which blocks give up"),
    ("relax|narrow", r"^.*ControlLayout::kAbort\)", "only its own value counts: rows have been read before it"),
    ("relax", r"^.*(shared\.failed|merge\.bad|m\.bad)\b", _BARRIER),
    ("remove", r"^low_latency\w+: barand: DEV bool may_start", _TWICE),
    ("remove", r"^.*sync_block_and\((!launch_failed|arrived)", _TWICE),
    ("remove", r"^.*(would end with the fault|tell_refusal)", _FAILED),
    ("remove", r"^throughput_settle: barsync: simt::sync_block\(\);$", _FAILED),
    ("relax", r"^.*first\.part", _BARRIER),
    ("narrow", r"^throughput_counts: .*(first\.part|by_rank\(\)|by_expert\(\))", "the kernel has one block"),
    ("relax|narrow", r"^.*claimed", _REFUSED),
    ("remove", r"^.*\n.*finish_check\(check\)", _REFUSED),
    ("remove", r"^.*sum_counts\(a, wait, shared, epoch\)", _TWICE),
    (
        "relax",
        r"ring\.tail|ring\.done|room = wait_until|^.*control_layout\.credit|^(.*\n){1,5}.*credit_of\(",
        _HOST,
    ),
    ("relax", r"^.*\n.*SystemWord\{hosted\}", _HOST),
    ("remove", r"^.*a shuffle alone orders no memory\n(.*\n)?.*take_staging", _HOST),
    ("narrow", r"^.*&wait_stats\[|^.*peer_stats.*\n.*PeerStat::k(WaitNs|RowsIn|BytesIn)", _ONE_LANE),
    ("narrow", r"^.*(theirs->(shape|origin)|header(\.|->)(num_tokens|topk))", _FLAG),
    ("narrow", r"^.*signals\.flag\(Phase::k(Dispatch|Combine), topology\.rank\)", _REPORTS),
    ("relax", r"^.*ring\.slots(.*\n)+.*tell_identity", _TAKEN_ALONG),
    ("relax", r"^.*ring\.slots(.*\n)+.*send_credit", _UNSEEN),
    ("relax", r"^.*ring\.slots(.*\n)+.*rings\[0\]", _NO_ROW),
    (
        "remove",
        r"^.*a shuffle alone orders no memory\n(if \(!warp_agree\(ticket|return warp_agree\(ok\);\n.*send_sum)",
        _AGREED,
    ),
    ("relax", r"^throughput_combine: (.*\n)+.*return seen > head", _AGAIN),
    ("relax", r"^.*in_ring && simt::ld_acquire_sys\(tail\)|^.*tail_fits\(wait, site, call\.geometry", _AGAIN),
    ("remove", r"^.*(\n.*)?\n.*open_contributions\(", _TWICE),
    ("relax", r"^throughput_settle: ld(.*\n)+.*drain_(dispatch|combine)\(", _AGAIN),
    ("remove", r"^throughput.*a shuffle alone orders no memory", _AGREED),
    (
        "narrow",
        r"^.*ring\.(head|cached_tail)(.*\n)+.*(rings\[0\]|send_weights|announce_consumed|kSpare|finish_dispatch|send_counts)",
        _ONE_BLOCK,
    ),
    ("narrow", r"^throughput_combine: .*ring\.(head|cached_tail)(.*\n)+.*tell_identity", "others push behind it"),
    ("narrow", r"^low_latency_combine_reduce: .*ring\.(head|cached_tail)(.*\n)+.*send_expect\($", _ONE_BLOCK),
    ("relax", r"^rank_barrier: (.*\n)+.*came", _GATE),
    ("relax", r"identities->(node|compared)|^throughput(.*\n)+.*DeviceWord\{compared\}", _GATE),
    ("relax|narrow|remove", r"stage_batches|await_read\(", _CPU),
    ("narrow", r"^.*(ring\.(tail|done|slots)|own_control|control_layout\.credit)", _PINNED),
    ("narrow", r"room = wait_until|SystemWord\{(came|hosted|ring\.done)\}", _PINNED),
)
"""(how, a pattern of kernel, instruction and source lines, why)."""
