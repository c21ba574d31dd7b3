"""Mutants that the machine does not find, each with the reason why: it changes nothing that PTX promises, or an order
that the machine does not see. And those that it cannot but find.

A pattern is searched in a text of lines: "kernel: instruction: source line", then the line that calls it, and so on. So
`^.*` and `.*` stay in a line; what else stands in a text says nothing of the instruction. Where the same line stands
twice in a function a pattern may go on to "behind: " and the line before it, the last one of the text.
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
_STALE = "the words that it orders are read by strong loads, of which the machine plays no old value: PTX needs it"
_FOLLOWS = "a barrier of the block, or a word of the team, comes before other warps read a row"
_UNREAD = "no other block of this kernel reads the word"
_COUNTED = "only counters follow in the turn; a barrier of the block orders what the warp stored before the flag"
_GRID = "a barrier of the grid lies between it and all writes but that of a launch which fails"
_TENSOR = "it orders rows which the host computes in torch's memory, and that the machine does not watch: PTX needs it"
_CPU = "kernels take this way on a CPU only"
_NO_WORK = "its team was told that nothing is left to do: no row was read or written in this turn"
_STREAM = "what this rank pushed for the call came in launches before, which its stream orders"
_STAYED = "behind it a rank is asked if it gave up while its rows were read, and in no scenario one does: PTX needs it"
_ARRIVED = "it says that this rank's writes have arrived; in no scenario only a barrier waits for some: PTX needs it"
_NO_ROW = "the command names no row of this launch: what it names was released before"

KNOWN: tuple[tuple[str, str, str], ...] = (
    ("narrow", r"^.*\b[ac]\.mask\b", _MASK),
    ("relax", r"^.*\n.*mask_peer\(", _EXCLUDED),
    ("relax", r"^.*(context\.abort|context\.departed|fault->|record_fault)", _FAILED),
    ("relax|narrow", r"^.*(fail_launch|findings->told)", _FAILED),
    ("relax", r"^.*bool launch_failed\(", "a barrier orders it behind the words with which blocks give up"),
    ("relax|narrow", r"^.*\nrecord_fault\(wait, site, FaultKind::kTimeout, load\(\)\)", _FAILED),
    ("relax", r"^.*(kTeamGone\);|TeamWord::kFailed\)\);)", _FAILED),
    ("relax", r"^.*done\[simt::warp\(\)\], t\.turn.*\n.*(hear_leader\(team, room|said == TeamWord::kNone)", _NO_WORK),
    ("remove", r"^.*simt::sync_warp\(\);\n.*(hear_leader\(team, room|said == TeamWord::kNone)", _NO_WORK),
    ("relax", r"^.*ControlLayout::kAbort\)", "only its own value counts: rows have been read before it"),
    ("relax", r"^.*(shared\.failed|merge\.bad|m\.bad)\b", _BARRIER),
    ("remove", r"^low_latency\w+: barand: DEV bool may_start", _TWICE),
    ("remove", r"^.*sync_block_and\((!launch_failed|arrived)", _TWICE),
    ("remove", r"^.*(would end with the fault|tell_refusal)", _FAILED),
    ("remove", r"^throughput_settle: barsync: simt::sync_block\(\);$", _FAILED),
    ("relax", r"^.*first\.part", _BARRIER),
    ("narrow", r"^throughput_counts: .*first\.part", "the kernel has one block"),
    ("relax|narrow", r"^.*claimed", _REFUSED),
    ("remove", r"^.*sync_block\(\);\n.*finish_check\(check\)", _REFUSED),
    ("remove", r"^.*sum_counts\(a, wait, shared, epoch\)", _TWICE),
    (
        "relax",
        r"ring\.tail|ring\.done|room = wait_until|^.*control_layout\.credit|^(.*\n){1,5}.*credit_of\(",
        _HOST,
    ),
    ("relax", r"^.*\n.*SystemWord\{hosted\}.*\nconst u64 other", _HOST),
    ("remove", r"^.*a shuffle alone orders no memory\n(.*\n)?.*take_staging", _HOST),
    ("narrow", r"^.*&wait_stats\[|^low_latency.*peer_stats.*\n.*PeerStat::k(WaitNs|RowsIn|BytesIn)", _ONE_LANE),
    ("narrow", r"^throughput_counts: .*peer_stats.*\n.*PeerStat::kWaitNs", _ONE_LANE),
    ("relax", r"^.*ring\.slots(.*\n)+.*tell_identity", _TAKEN_ALONG),
    ("relax", r"^.*ring\.slots(.*\n)+.*send_credit(?!(.*\n)+release_partials)", _UNSEEN),
    ("relax", r"^.*ring\.slots(.*\n)+.*rings\[0\]", _NO_ROW),
    (
        "remove",
        r"^.*a shuffle alone orders no memory\n(if \(!warp_agree\(ticket|return warp_agree\(ok\);\n.*send_sum)",
        _AGREED,
    ),
    ("relax", r"^throughput_combine: (.*\n)+.*return seen > head", _AGAIN),
    ("relax", r"^.*in_ring && simt::ld_acquire_sys\(tail\)|^.*tail_fits\(wait, site, call\.geometry", _AGAIN),
    ("remove", r"^.*(\n.*)?\nif \(simt::warp\(\) == 0\) open_contributions\(", _TWICE),
    ("relax", r"^throughput_settle: ld(.*\n)+.*(drain_(dispatch|combine)\(|\{ return dispatch_head\()", _AGAIN),
    ("remove", r"^throughput.*a shuffle alone orders no memory(?!\nreturn warp_agree\(.*send_partials)", _AGREED),
    (
        "narrow",
        r"^.*ring\.(head|cached_tail)(.*\n)+.*(rings\[0\]|send_weights|announce_consumed|kSpare|finish_dispatch|send_counts)",
        _ONE_BLOCK,
    ),
    ("narrow", r"^throughput_combine: .*ring\.(head|cached_tail)(.*\n)+.*tell_identity", "others push behind it"),
    (
        "narrow",
        r"^.*: st\.release\.gpu.*\n.*learn_done\(a\.rank\.rings|^low_latency_combine_reduce: .*&a\.sizes\[source\]\)",
        _ONE_BLOCK,
    ),
    ("narrow", r"^(low_latency_combine_recv|rank_barrier): .*ring\.head", _STREAM),
    ("narrow", r"^low_latency_combine_reduce: .*ring\.(head|cached_tail)(.*\n)+.*send_expect\($", _ONE_BLOCK),
    ("relax", r"^rank_barrier: (.*\n)+.*came", _GATE),
    ("remove", r"^rank_barrier: barand: .*await_rings\(", _ARRIVED),
    ("relax", r"identities->(node|compared)|^throughput(.*\n)+.*DeviceWord\{compared\}", _GATE),
    ("relax", r"^.*ring\.cached_done", _HOST),
    ("relax", r"^throughput_dispatch: .*heads\[g\](.*\n)+.*\bk, (news|k\.landing)", _UNSEEN),
    ("relax", r"^throughput_dispatch: .*heads\[g\](.*\n)+.*(return_credit\(a, wait, k, 1\)|slowest, )", _AGAIN),
    ("relax", r"^throughput(.*\n)+ok = ok && compare_identities\(c, wait, phase, identity, epoch, false", _STALE),
    ("relax", r"^low_latency_combine_recv: (.*\n)+.*flag\(a\.rank, turn\.wait, site, flag, turn\.number", _STALE),
    ("remove", r"^throughput_combine: barand: const bool all = simt::sync_block_and\(simt::warp\(\) != 0", _FOLLOWS),
    ("remove", r"^throughput.*what lane 0 wrote is visible to all\n.*hear_leader\((team, room|t, ok)", _TWICE),
    (
        "remove",
        r"^throughput_combine: barwarp: .*sync_warp\(\);\n(const bool planned|.*side_by_side\) look_around)",
        _TWICE,
    ),
    ("remove", r"^.*// (all rows of the batch are|whether they have stayed|what is sent is there)", _TWICE),
    ("narrow", r"^throughput.*peer_stats.*\n.*add_stat\(a\.rank, (site\.peer|k\.source), PeerStat::kWaitNs", _ONE_LANE),
    ("narrow", r"^throughput_dispatch: .*identities->node", _UNREAD),
    ("narrow", r"^low_latency_dispatch_recv: .*bool launch_fail(s|ed)\((?!(.*\n)+ok = sync_launch)", _GRID),
    ("relax", r"^low_latency_combine_send: (.*\n)+ok = wait_until\(turn\.wait,\n.*await_computed\(", _TENSOR),
    ("remove", r"^.*a shuffle alone orders no memory\nreturn warp_agree\(ok\);\n.*await_computed\(", _TENSOR),
    ("remove", r"^.*what that lane acquired is then visible", _HOST),
    (
        "remove",
        r"^throughput_combine: .*\nif \(!ok \|\| !finish_turn\(team\)\)(.*\n)+behind: const bool all = simt::ballot",
        _STAYED,
    ),
    ("remove", r"^low_latency_combine_send: barwarp: simt::sync_warp\(\);\ngive_to_host\(", _COUNTED),
    ("relax|narrow|remove", r"stage_batches|await_read\(|all tails are there", _CPU),
)
"""(how, a pattern of kernel, instruction and source lines, why). No mutant of these is ever found: where one is, the
reason is wrong or its pattern too wide, and the table is not made."""

UNSEEN = frozenset({_HOST, _TAKEN_ALONG, _UNSEEN, _STALE, _TENSOR, _STAYED, _ARRIVED})
"""Reasons that lie in the machine: PTX promises what such a mutant takes away, and the machine does not see it."""

REFUSED: tuple[tuple[str, str], ...] = (
    ("narrow", r"^.*(context\.abort|context\.departed|fault->|record_fault|ControlLayout::kAbort\))"),
    ("narrow", r"^.*\n.*mask_peer\("),
    ("narrow", r"^.*(ring\.(tail|done|slots)|own_control|control_layout\.credit)"),
    ("narrow", r"room = wait_until|SystemWord\{(came|hosted|ring\.done)\}"),
)
"""Likewise (how, pattern), of words in the host's memory, where the machine refuses any scope but the system's. So such
a mutant is found wherever it is executed, and one that no play executes tells nothing: many are in waits that last."""
