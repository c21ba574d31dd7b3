"""The planted faults: what is changed where, which TEST must fail, and what its output must say."""

from __future__ import annotations

from dataclasses import dataclass

RACE = "data race"  # ThreadSanitizer's words
WRONG = "FAILED"  # a row, a count or a weight differs, or the call was refused
EITHER = f"{WRONG}|{RACE}"  # bytes used too early: ThreadSanitizer may be quicker than the check
SIMULATED = ("simulation_batch_fixed_seeds_any",)


@dataclass(frozen=True)
class Fault:
    """One change of one file."""

    name: str
    file: str
    text: str  # occurs exactly once
    planted: str
    tests: tuple[str, ...]  # each must fail
    shows: str


FAULTS = (
    Fault(
        "dropped-release",
        "kernels/throughput/dispatch.h",
        "simt::st_release_sys(s.sent_word, number + 1);",
        "simt::st_relaxed_sys(s.sent_word, number + 1);",
        ("throughput_dispatch_row_exact_in_every_topology",),
        RACE,
    ),
    Fault(
        "dropped-release-of-a-flag",
        "proxy/engine/words.h",
        "std::atomic_ref<u64>(control_word(control, offset)).store(value, std::memory_order_release);",
        "std::atomic_ref<u64>(control_word(control, offset)).store(value, std::memory_order_relaxed);",
        ("low_latency_combine_recv_sums_over_many_rounds",),
        RACE,
    ),
    Fault(
        "dropped-acquire",
        "kernels/low_latency/common.h",
        "wait_or_mask<true>(c, wait, site, SystemWord{flag}, [&](u64 seen) { return (last = seen)",
        "wait_or_mask<true>(c, wait, site, [&] { return simt::ld_relaxed_sys(flag); }, "
        "[&](u64 seen) { return (last = seen)",
        ("low_latency_dispatch_recv_orders_rows_in_every_topology",),
        RACE,
    ),
    Fault(  # of both words: either of them alone is enough
        "dropped-acquire-of-a-ring",
        "proxy/ring/consumer.h",
        "(slot.lo).load(std::memory_order_acquire);  // pairs with the producer's release\n"
        "    if ((lo ^ parity) & kParityBit) return false;\n"
        "    const u64 hi = std::atomic_ref<u64>(slot.hi).load(std::memory_order_acquire);",
        "(slot.lo).load(std::memory_order_relaxed);\n"
        "    if ((lo ^ parity) & kParityBit) return false;\n"
        "    const u64 hi = std::atomic_ref<u64>(slot.hi).load(std::memory_order_relaxed);",
        ("low_latency_dispatch_send_runs_through_full_rings",),
        RACE,
    ),
    Fault(
        "missing-block-barrier",
        "kernels/layout/access.h",
        "DEV bool last_block(u32* ticket, u32* shared_word) {\n  simt::sync_block();\n",
        "DEV bool last_block(u32* ticket, u32* shared_word) {\n",
        # layout_access_last_block_sees_what_every_block_wrote sees it too, but not in every run.
        ("low_latency_dispatch_recv_orders_rows_in_every_topology",),
        "",
    ),
    Fault(
        "missing-block-barrier-in-counts",
        "kernels/throughput/counts.h",
        "  simt::sync_block();\n  for (u32 r = simt::warp(); r < topology.num_ranks; r += simt::num_warps()) {  // the",
        "  for (u32 r = simt::warp(); r < topology.num_ranks; r += simt::num_warps()) {  // the",
        ("throughput_counts_over_many_rounds",),
        EITHER,
    ),
    Fault(
        "missing-block-barrier-in-combine",
        "kernels/throughput/own_sums.h",
        "    simt::sync_block();  // all rows of the batch are read\n"
        "    if (simt::ld_acquire_cta(&s.merge.bad) != 0) return;\n"
        "    if (simt::warp() == 0 && !rows_stayed(a, wait, s.merge, channel) && simt::lane() == 0) s.merge.ok = 0;\n"
        "    simt::sync_block();  // whether they have stayed is said\n",
        "",
        ("throughput_combine_sums_over_uneven_nodes",),
        RACE,
    ),
    Fault(
        "rows-given-back-before-they-are-read",
        "kernels/throughput/contribute.h",
        "[&](u64 seen) { return seen >= site.expected; }",
        "[&](u64) { return true; }",
        ("throughput_contribute_reads_rows_in_arenas",),
        f"{EITHER}|heap-use-after-free",  # the caller's tensor is gone
    ),
    Fault(
        "rows-read-of-a-rank-that-gave-up",
        "kernels/throughput/contribute.h",
        "ControlLayout::kAbort)) == 0) continue;",
        "ControlLayout::kAbort)) <= 1) continue;",
        ("throughput_contribute_names_a_rank_that_does_not_read",),
        WRONG,
    ),
    Fault(
        "row-that-stays-in-a-place-of-another",
        "kernels/low_latency/common.h",
        "topology.local_of[rank], mark & ~kRowStays, 2ull",
        "topology.local_of[rank], (mark & ~kRowStays) ^ 16, 2ull",
        ("low_latency_combine_send_rows_that_stay",),
        WRONG,
    ),
    Fault(
        "wrong-epoch",
        "proxy/engine/arrivals.cpp",
        "  Epoch& e = counter.window[epoch % kEpochWindow];\n  // Complete",
        "  Epoch& e = counter.window[(epoch = counter.published + 1) % kEpochWindow];\n  // Complete",
        # All orders of arrivals: the kernels' tests see a flag that is raised too early only where a reader is quick.
        ("exhaustive_arrivals_one_source_three_epochs_of_up_to_four_writes",),
        WRONG,
    ),
    Fault(
        "identity-never-compared",
        "kernels/layout/access.h",
        "if (!first_difference(mine, seen, &difference)) return true;",
        "if (first_difference(mine, seen, &difference) || true) return true;",
        (
            "throughput_identify_refuses_a_routing_of_another_exchange",
            "low_latency_dispatch_recv_refuses_another_shape",
        ),
        WRONG,
    ),
    Fault(
        "identity-of-other-nodes-never-compared",
        "kernels/throughput/identify.h",
        "    ok = ok && compare_identities(c, wait, phase, identity, epoch, false);\n",
        "",
        ("throughput_identify_refuses_rows_of_another_size", "throughput_identify_names_a_rank_that_does_not_come"),
        WRONG,
    ),
    Fault(
        "identity-without-its-dispatch",
        "kernels/throughput/identify.h",
        "CallIdentity::origin_of(*call.number, c.tag)",
        "CallIdentity::origin_of(0 * *call.number, c.tag)",
        ("throughput_identify_refuses_a_routing_of_another_exchange",),
        WRONG,
    ),
    Fault(
        "counts-of-another-format-accepted",
        "kernels/throughput/counts.h",
        "    if (mine == theirs) return true;\n    const WaitSite site{WaitPhase::kCounts",
        "    if (mine == theirs || true) return true;\n    const WaitSite site{WaitPhase::kCounts",
        ("throughput_counts_refuse_a_rank_that_speaks_of_another_call",),
        WRONG,
    ),
    Fault(
        "off-by-one-slot",
        "kernels/throughput/common.h",
        "return site.expected - seen < g.num_slots;",
        "return site.expected - seen <= g.num_slots;",
        ("throughput_dispatch_wraps_with_tiny_rings", "throughput_common_slot_opens_when_the_slowest_reader_has_left"),
        "",
    ),
    Fault(
        "off-by-one-combine-slot",
        "kernels/low_latency/dispatch_recv.h",
        "out[plane] = static_cast<i32>(slot);",
        "out[plane] = static_cast<i32>(slot / topk * topk + (slot + 1) % topk);",
        ("low_latency_dispatch_recv_orders_rows_in_every_topology",),
        WRONG,
    ),
    Fault(
        "parts-of-a-list-in-one-place",
        "kernels/low_latency/dispatch_recv.h",
        "shared.begin[simt::lane()] + found_before(shared, simt::warp());",
        "shared.begin[simt::lane()];",
        ("low_latency_dispatch_recv_reads_a_list_with_all_warps_of_a_block",),
        f"{WRONG}|SEGV",  # rows that were never placed are of no rank
    ),
    Fault(
        "lost-last-row",
        "kernels/low_latency/dispatch_send.h",
        "m.bytes = rows * row;",
        "m.bytes = (rows > 1 ? rows - 1 : 1) * row;",
        ("low_latency_dispatch_send_runs_through_full_rings",),
        WRONG,
    ),
    Fault(
        "lost-last-row-of-a-stream",
        "kernels/throughput/receive.h",
        "      if ((*dealt)++ % team.size == team.member())\n",
        "      if (taken != owed && (*dealt)++ % team.size == team.member())\n",
        ("throughput_dispatch_row_exact_in_every_topology",),
        WRONG,
    ),
    Fault(
        "weights-twice",
        "kernels/low_latency/combine_recv.h",
        "weights[at] = weight;",
        "weights[at] = weight * weight;",
        ("low_latency_combine_recv_sums_over_many_rounds",),
        WRONG,
    ),
    Fault(
        "sums-of-a-node-without-weights",
        "kernels/low_latency/combine_reduce.h",
        "shared.weights[simt::warp()][at] = of.weights[first + k];",
        "shared.weights[simt::warp()][at] = 1.0f;",
        ("low_latency_combine_reduce_sums_over_many_rounds",),
        WRONG,
    ),
    # A word of a peer's that is used unchecked.
    Fault(
        "tail-beyond-the-ring",
        "kernels/throughput/common.h",
        "return tail - head <= g.num_slots || bad_arrival(wait, site, tail);",
        "return true;",
        (
            "throughput_merge_refuses_rows_that_cannot_stand_there",
            "throughput_dispatch_refuses_a_tail_beyond_the_ring_and_a_row_of_another_lap",
        ),
        WRONG,
    ),
    Fault(
        "header-of-another-row",
        "kernels/layout/throughput.h",
        "{ return seal == make(destinations, token, position).seal; }",
        "{ return seal == make(destinations, token, position).seal || seal != 0; }",
        (
            "layout_throughput_a_changed_row_header_is_at_no_position",
            "throughput_merge_refuses_rows_that_cannot_stand_there",
            "throughput_dispatch_refuses_a_tail_beyond_the_ring_and_a_row_of_another_lap",
        ),
        WRONG,
    ),
    Fault(
        "more-rows-than-announced",
        "kernels/throughput/receive.h",
        "      if (taken++ == owed) break;\n",
        "      ++taken;\n",
        ("throughput_dispatch_refuses_rows_that_were_not_announced",),
        f"{WRONG}|heap-buffer-overflow",
    ),
    Fault(
        "place-outside-its-memory",
        "kernels/layout/access.h",
        "return offset <= size && bytes <= size - offset ?",
        "return offset <= size || bytes <= size ?",
        (
            "throughput_merge_finds_no_payload_outside_an_arena",
            "low_latency_common_finds_no_row_outside_registered_memory",
        ),
        WRONG,
    ),
    Fault(
        "sum-without-a-row",
        "kernels/throughput/own_sums.h",
        "  for (u32 g = 0; differ != 0 && g < m.num_from; ++g) {\n",
        "  for (u32 g = 0; differ == 0 && g < m.num_from; ++g) {\n",
        ("throughput_own_sums_refuses_a_handle_that_was_written_to",),
        WRONG,
    ),
    Fault(
        "experts-named-too-often",
        "kernels/low_latency/dispatch_recv.h",
        "        if (n[i] > most) fits",
        "        if (n[i] > 4 * most) fits",
        ("low_latency_dispatch_recv_refuses_a_block_that_cannot_be",),
        f"{WRONG}|heap-buffer-overflow",
    ),
    Fault(
        "peer-ahead-of-its-time",
        "kernels/layout/access.h",
        "if (seen <= most || c.shrink) return true;",
        "if (seen != 0 || c.shrink) return true;",
        (
            "low_latency_common_refuses_a_reader_ahead_of_what_was_sent",
            "low_latency_dispatch_recv_refuses_a_flag_of_the_call_after_next",
            "collective_barrier_refuses_a_round_that_needs_this_one",
        ),
        WRONG,
    ),
    Fault(
        "announcement-unsealed",
        "proxy/engine/arrivals.cpp",
        "num_writes != 0 : !h.is_whole())",
        "num_writes != 0 : h.seal == 0)",
        ("engine_arrivals_refuse_an_announcement_of_which_a_bit_was_changed",),
        WRONG,
    ),
    # The protocol broken on purpose, found by the simulated network within its first seeds (without a sanitizer too).
    Fault(
        "published-before-the-count",
        "proxy/engine/arrivals.cpp",
        "  e.expected = num_writes;\n",
        "  e.expected = num_writes > 1 && num_writes - 1 >= e.counted ? num_writes - 1 : num_writes;\n",
        SIMULATED,
        EITHER,
    ),
    Fault(
        "sequences-applied-unordered",
        "proxy/engine/sequences.cpp",
        "    bump(counters_.parked);\n",
        "    bump(counters_.parked);\n"
        "    publish_word(control_, layout_.tail(direction, source, channel), s.next + s.waiting + 1);\n",
        SIMULATED,
        EITHER,
    ),
    Fault(
        "no-credit-check",
        "kernels/throughput/common.h",
        "return site.expected - seen < g.num_slots;",
        "return site.expected - seen < g.num_slots || site.expected != 0;",
        SIMULATED,
        EITHER,
    ),
    Fault(
        "done-when-posted",
        "proxy/engine/poster.cpp",
        "ring.consumer.publish_done(ring.published_done = ring.done);",
        "ring.consumer.publish_done(ring.published_done = ring.consumer.next_ticket());",
        SIMULATED,
        EITHER,
    ),
    Fault(
        "deaf-barrier",
        "proxy/engine/barrier.cpp",
        "heard_[next_wait_] >= round_)) ++next_wait_;",
        "heard_[next_wait_] + 1 >= round_)) ++next_wait_;",
        SIMULATED,
        EITHER,
    ),
    Fault(
        "epoch-not-widened",
        "proxy/engine/arrivals.cpp",
        "*epoch = widen(key_epoch(key), kEpochBits, counter.published);",
        "*epoch = (counter.published & ~low_bits(kEpochBits)) | key_epoch(key);",
        SIMULATED,
        EITHER,
    ),
    Fault(
        "flag-before-its-last-write",
        "proxy/engine/arrivals.cpp",
        "    if (e.counted != e.expected) break;\n",
        "    if (e.expected == kUnknown || e.counted + 1 < e.expected) break;\n",
        ("exhaustive_arrivals_one_source_three_epochs_of_up_to_four_writes",),
        WRONG,
    ),
    Fault(
        "chunk-counted-twice",
        "proxy/engine/sequences.cpp",
        "    if (test(s, n)) return {Outcome::kStale};\n",
        "",
        ("exhaustive_sequences_windows_of_one_to_four",),
        WRONG,
    ),
    Fault(
        "credit-beyond-the-field",
        "proxy/engine/credit_gate.h",
        "((position - s.settled) & low_bits(kSequenceBits))",
        "((position - s.newest) & low_bits(kSequenceBits))",
        ("exhaustive_credit_gate_any_order",),
        WRONG,
    ),
    Fault(
        "done-past-an-open-write",
        "proxy/engine/poster.cpp",
        "  for (; ring.slots[ring.done & mask].state == SlotState::kComplete; ++ring.done)",
        "  for (; ring.done <= ticket; ++ring.done)",
        ("exhaustive_quiet_completions_in_any_order",),
        WRONG,
    ),
    Fault(
        "barrier-without-quiet",
        "proxy/engine/poster.cpp",
        "  if (ring.done != ring.consumer.next_ticket()) return Step::kWait;  // quiet first\n",
        "",
        ("exhaustive_barrier_two_ranks",),
        WRONG,
    ),
    Fault(
        "torn-command",
        "proxy/ring/consumer.h",
        "    if ((hi ^ parity) & kParityBit) return false;",
        "",
        ("exhaustive_ring_two_producers_over_two_slots",),
        WRONG,
    ),
    Fault(
        "slot-reused-too-early",
        "kernels/device/ring_push.h",
        "ld_relaxed_gpu(ring.cached_tail) < ring.capacity",
        "ld_relaxed_gpu(ring.cached_tail) <= ring.capacity",
        ("exhaustive_ring_two_producers_over_two_slots",),
        WRONG,
    ),
)
