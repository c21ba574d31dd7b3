// Throughput combine. Blocks of a channel: (0) puts this rank's rows into one ring per source that another rank sums
// for; (1) sums this rank's own tokens: rows of its node, then the partial sums of other nodes' cells; (2), with several
// nodes, sums its cell's rows of the remote sources that this rank stands for and sends one partial row per token.
//
// Rounding (facts B.1). One node: fp32 sum of bias and rows in ascending rank, one round. Several: the rows of each
// cell (topology.h) in ascending rank, rounded to bf16, this rank's own node being one; then bias and cells in ascending
// order, rounded. With a cell a rank, other nodes' rows are thus added one by one as they are.
#pragma once
#include "kernels/throughput/contribute.h"

namespace uccl {

struct CombineShared {
  MergeShared merge;
  ContributeShared contribute;
  u32 cursor, in_chunk;  // next token, or rows already in the outgoing chunk
  u64 number;  // outgoing chunk
  // Behind it, a warp: kMaxPartials + 1 payload pointers (also enough for kMaxRanksPerNode).
  static constexpr u64 bytes(u32 warps) { return align_up(sizeof(CombineShared), 16) + warps * pointer_bytes(); }
  static constexpr u64 pointer_bytes() { return (kMaxPartials + 2) * 8; }
};
static_assert(kMaxRanksPerNode <= kMaxPartials + 1);

DEV const u16** warp_pointers(CombineShared& s) {
  return reinterpret_cast<const u16**>(reinterpret_cast<u8*>(&s) + align_up(sizeof(CombineShared), 16) +
                                       simt::warp() * CombineShared::pointer_bytes());
}

// The whole block: what thread 0 last left in `ok`, read by all before it can change again.
DEV u32 all_see_ok(CombineShared& s) {
  simt::sync_block();
  const u32 ok = s.merge.ok;
  simt::sync_block();
  return ok;
}

// ---- (1) this rank's own tokens ---------------------------------------------------------------------------------

DEV void open_partials(const CombineArgs& a, u32 channel) {
  const TopologyView& t = a.rank.topology;
  for (u32 n = simt::tid(); n < t.num_cells; n += simt::ntid()) {
    PartialState& p = a.partials[channel * t.num_cells + n];
    p = PartialState{0, 0, 0, 0};
    if (!t.is_remote(n)) continue;
    p.head = p.released = simt::ld_relaxed_sys(partial_stream(a.rank, a.call.layout, n, channel).heads);
    p.remaining = a.call.node_rows[n * a.call.geometry.num_channels + channel];
  }
}

// A row of this token comes from cell n. Ranks are only ever masked within a call: what was passed over once is again.
DEV bool has_partial(const CombineArgs& a, u32 token, u32 n) {
  const TopologyView& t = a.rank.topology;
  if (!t.is_remote(n) || destinations(a.rank, a.call.is_token_in_rank, token, n) == 0) return false;
  return !a.rank.shrink || !masked(a.rank, t.landing_rank(t.rank, n));
}

// Lane 0: every partial row of this token is readable, or its sender masked.
DEV Step look_at_partials(const CombineArgs& a, const WaitContext& wait, u32 channel, u32 token, bool may_wait) {
  const TopologyView& t = a.rank.topology;
  for (u32 n = 0; n < t.num_cells; ++n) {
    if (!has_partial(a, token, n)) continue;
    const PartialState& p = a.partials[channel * t.num_cells + n];
    const u64* tail = partial_stream(a.rank, a.call.layout, n, channel).tail;
    const u64 head = p.head;
    const WaitSite site{WaitPhase::kCombineReceive, t.landing_rank(t.rank, n), channel, head + 1};
    u64 there = simt::ld_acquire_sys(tail);
    if (there > head && !tail_fits(wait, site, a.call.geometry, head, there)) return Step::kFailed;
    if (there > head) continue;
    if (!may_wait) return Step::kNotYet;
    const u32 peer = site.peer;
    const u64 begin = simt::now_ns();
    bool absent;
    if (!wait_or_mask(a.rank, wait, site, SystemWord{tail}, [&](u64 seen) { return (there = seen) > head; }, &absent))
      return Step::kFailed;
    if (!absent && !tail_fits(wait, site, a.call.geometry, head, there)) return Step::kFailed;
    if (channel == 0) add_stat(a.rank, peer, PeerStat::kWaitNs, simt::now_ns() - begin);
  }
  return Step::kReady;
}

// Lane 0: puts the token's partial rows into the entry, in ascending order of cells.
DEV void take_partials(const CombineArgs& a, u32 channel, u32 token, PlanEntry& e) {
  const TopologyView& t = a.rank.topology;
  const StreamGeometry& g = a.call.geometry;
  for (u32 n = 0; n < t.num_cells; ++n) {
    if (n == t.cell) e.own_position = e.num_partials;
    if (!has_partial(a, token, n)) continue;
    PartialState& p = a.partials[channel * t.num_cells + n];
    e.positions[e.num_partials] = RowHeader::position(p.head, p.remaining - 1);
    e.partials[e.num_partials++] = partial_stream(a.rank, a.call.layout, n, channel).unit + g.chunk(channel, p.head) +
                                   static_cast<u64>(p.row) * g.row_bytes + sizeof(RowHeader);
    --p.remaining;
    if (++p.row < g.rows_per_chunk && p.remaining != 0) continue;
    ++p.head;
    p.row = 0;
  }
}

// Lane 0: a token was found at those ranks of the node that it went to; a rank that is masked need not have it.
DEV bool check_takers(const CombineArgs& a, const WaitContext& wait, const MergeShared& m, const WaitSite& site,
                      u64 had) {
  const u32 token = static_cast<u32>(site.expected);
  const u64 differ = had ^ destinations(a.rank, a.call.is_token_in_rank, token, a.rank.topology.cell);
  for (u32 g = 0; differ != 0 && g < m.num_from; ++g) {
    const u32 rank = a.rank.topology.crowd_member(m.source, g);
    const bool left_out = a.rank.shrink && (had >> g & 1) == 0 && masked(a.rank, rank);
    if ((differ >> g & 1) == 0 || left_out) continue;
    return bad_arrival(wait, WaitSite{site.phase, rank, site.detail, token},
                       m.from[g].remaining == 0 ? kNoToken : m.from[g].token);
  }
  return true;
}

// Lane 0 plans up to kMaxPlan of this rank's tokens.
DEV void plan_own(const CombineArgs& a, const WaitContext& wait, CombineShared& s, u32 channel, u32 end) {
  MergeShared& m = s.merge;
  const TopologyView& t = a.rank.topology;
  m.count = 0;
  while (m.count < kMaxPlan && s.cursor < end) {
    const bool may_wait = m.count == 0;
    const bool here = destinations(a.rank, a.call.is_token_in_rank, s.cursor, t.cell) != 0;
    Step step = here ? look_ahead(a.rank, wait, a.call, m, channel, may_wait) : Step::kReady;
    if (step == Step::kReady && t.num_nodes > 1) step = look_at_partials(a, wait, channel, s.cursor, may_wait);
    if (step == Step::kFailed) m.ok = 0;
    if (step != Step::kReady) return;
    PlanEntry& e = m.plan[m.count++];
    clear_entry(e);
    e.token = s.cursor;
    const u64 had = here ? take_token(a.call, m, channel, s.cursor, e) : 0;
    if (here && !check_takers(a, wait, m, WaitSite{WaitPhase::kCombineReceive, t.rank, channel, s.cursor}, had)) {
      m.ok = 0;
      return;
    }
    if (t.num_nodes > 1) take_partials(a, channel, s.cursor, e);
    ++s.cursor;
  }
}

// One lane: the cell whose row is the `nth` that a token is summed from. For reports.
DEV u32 partial_sender(const CombineArgs& a, u32 token, u32 nth) {
  const TopologyView& t = a.rank.topology;
  for (u32 n = 0; n < t.num_cells; ++n)
    if (has_partial(a, token, n) && nth-- == 0) return t.landing_rank(t.rank, n);
  return kNoPeer;
}

// One warp: other nodes' rows of a token are the ones that must stand where they do.
DEV bool check_partials(const CombineArgs& a, const WaitContext& wait, u32 channel, const PlanEntry& e) {
  bool good = true;
  for (u32 i = simt::lane(); i < e.num_partials; i += simt::kWarp) {
    const RowHeader header = *reinterpret_cast<const RowHeader*>(e.partials[i] - sizeof(RowHeader));
    if (header.token == e.token && header.is_at(e.positions[i])) continue;
    const u32 peer = partial_sender(a, e.token, i);
    good = bad_arrival(wait, WaitSite{WaitPhase::kCombineReceive, peer, channel, e.token}, header.token);
  }
  return simt::ballot(!good) == 0;
}

// One warp: a row that cannot be was found; no more is planned.
DEV void give_up(MergeShared& m) {
  if (simt::lane() == 0) simt::st_release_cta(&m.bad, 1u);
}

// One warp: the places of a token's rows. False: one is nowhere, and the call has failed.
DEV bool find_rows(const CombineArgs& a, const WaitContext& wait, CombineShared& s, u32 channel, const PlanEntry& e) {
  const Arenas arenas{a.arenas, a.rank.topology.local_size, a.call.shape.payload_bytes};
  if (payloads(e, arenas, warp_pointers(s))) return true;
  if (simt::lane() == 0) bad_arrival(wait, WaitSite{WaitPhase::kCombineReceive, kNoPeer, channel, 0}, e.token);
  give_up(s.merge);
  return false;
}

// One warp: one of this rank's tokens.
DEV void reduce_own(const CombineArgs& a, const WaitContext& wait, CombineShared& s, u32 channel, const PlanEntry& e) {
  const RowShape& shape = a.call.shape;
  const u64 at = static_cast<u64>(e.token) * a.hidden;
  const u64 all = static_cast<u64>(a.call.num_tokens) * shape.payload_bytes;
  const RowBias bias{a.bias0 != nullptr ? a.bias0 + at : nullptr, a.bias1 != nullptr ? a.bias1 + at : nullptr};
  const u16** list = warp_pointers(s);
  if (!find_rows(a, wait, s, channel, e)) return;
  if (a.rank.topology.num_nodes == 1) {
    reduce_rows_out(a.out + at, list, e.num_rows, a.hidden, bias, all);
  } else {
    if (!check_partials(a, wait, channel, e)) return give_up(s.merge);
    u16* own = a.scratch + static_cast<u64>(channel * simt::num_warps() + simt::warp()) * a.hidden;
    if (e.num_rows != 0) reduce_rows(own, list, nullptr, e.num_rows, a.hidden);
    simt::sync_warp();
    const u32 has_own = e.num_rows != 0;
    for (u32 i = simt::lane(); i < e.num_partials; i += simt::kWarp)
      list[i + (i >= e.own_position ? has_own : 0)] = reinterpret_cast<const u16*>(e.partials[i]);
    if (has_own && simt::lane() == 0) list[e.own_position] = own;
    simt::sync_warp();
    reduce_rows_out(a.out + at, list, e.num_partials + has_own, a.hidden, bias, all);
  }
  for (u32 k = simt::lane(); shape.has_weights && k < shape.topk; k += simt::kWarp) {
    float sum = e.num_partials == 0 ? sum_weights(shape, e, k) : 0.0f;
    for (u32 i = 0; e.num_partials != 0 && i <= e.num_partials; ++i) {
      if (i == e.own_position) sum += sum_weights(shape, e, k);
      if (i < e.num_partials) sum += weights_in(shape, e.partials[i] - sizeof(RowHeader))[k];
    }
    a.out_weights[static_cast<u64>(e.token) * shape.topk + k] = sum;
  }
  simt::sync_warp();
}

// After a batch: gives partial chunks back to the cells that sent them.
DEV void release_partials(const CombineArgs& a, const WaitContext& wait, u32 channel) {
  const TopologyView& t = a.rank.topology;
  if (t.num_nodes == 1) return;
  if (simt::lane() != 0) return;  // lanes of one warp do not push side by side (ring_push.h)
  for (u32 n = simt::warp(); n < t.num_cells; n += simt::num_warps()) {
    PartialState& p = a.partials[channel * t.num_cells + n];
    if (p.released == p.head) continue;
    p.released = p.head;
    simt::st_release_sys(partial_stream(a.rank, a.call.layout, n, channel).heads, p.head);
    send_credit(a.rank, wait, Direction::kCombine, t.landing_rank(t.rank, n), channel, p.head);
  }
}

DEV void combine_own(const CombineArgs& a, const WaitContext& wait, CombineShared& s, u32 channel) {
  const u32 channels = a.call.geometry.num_channels;
  const u32 end = channel_begin(a.call.num_tokens, channels, channel + 1);
  if (simt::tid() == 0) s.cursor = channel_begin(a.call.num_tokens, channels, channel);
  open_partials(a, channel);
  const u32 rank = a.rank.topology.rank;
  WarpTurn turn;
  open_contributions(a.rank, a.call, s.merge, rank, channel, own_rows(a, rank, channel));
  while (s.cursor < end) {
    simt::sync_block();  // everyone has seen the cursor, and the batch before is given back
    if (simt::kLanesInParallel && simt::warp() == 0) look_around(a.call, s.merge, channel);
    if (simt::tid() == 0) plan_own(a, wait, s, channel, end);
    if (!all_see_ok(s)) return;
    for (u32 i = turn.first(s.merge.count); i < s.merge.count; i += simt::num_warps())
      reduce_own(a, wait, s, channel, s.merge.plan[i]);
    simt::sync_block();
    if (simt::ld_acquire_cta(&s.merge.bad) != 0) return;
    if (simt::tid() == 0 && !rows_stayed(a, wait, s.merge, channel)) s.merge.ok = 0;
    simt::sync_block();
    release_contributions(s.merge);
    release_partials(a, wait, channel);
  }
}

// ---- (2) partial sums for remote sources ------------------------------------------------------------------------

struct PartialOut {
  u32 source, channel, rows;
  u64 unit_offset, remote_offset;
  u64* sent_word;
};
DEV PartialOut partial_out(const CombineArgs& a, u32 source, u32 channel) {
  const TopologyView& t = a.rank.topology;
  PartialOut p{};
  p.source = source;
  p.channel = channel;
  p.rows = a.call.stream_rows[source * a.call.geometry.num_channels + channel];
  p.unit_offset = a.call.layout.partial_staging(t.landing_slot(source, t.cell));
  p.remote_offset = a.call.layout.partial(t.cell);
  p.sent_word = word(own_data(a.rank), a.rank.signals.sent(Direction::kCombine, source, channel));
  return p;
}

// Lane 0: plans rows of one outgoing chunk; `left` rows of the stream are still to come.
DEV void plan_partials(const CombineArgs& a, const WaitContext& wait, CombineShared& s, const PartialOut& p, u32 left) {
  MergeShared& m = s.merge;
  const StreamGeometry& g = a.call.geometry;
  m.count = 0;
  if (s.in_chunk == 0) {
    const WaitSite site{WaitPhase::kCombineSend, p.source, p.channel, s.number};
    const auto head = [&] { return credit_of(a.rank, Direction::kCombine, p.source, p.channel); };
    bool absent;
    const bool ok = wait_for_slot(a.rank, wait, site, g, head, &absent);
    if (!ok || absent) {
      m.ok = ok ? kSourceLeftOut : 0;
      return;
    }
  }
  u8* chunk = own_data(a.rank) + p.unit_offset + g.chunk(p.channel, s.number);
  while (m.count < kMaxPlan && s.in_chunk < g.rows_per_chunk && m.count < left) {
    const Step step = look_ahead(a.rank, wait, a.call, m, p.channel, m.count == 0);
    if (step == Step::kFailed) m.ok = 0;
    if (step != Step::kReady) return;
    PlanEntry& e = m.plan[m.count++];
    clear_entry(e);
    if (take_token(a.call, m, p.channel, kNoToken, e) == 0) {  // fewer tokens than the source says that it has here
      bad_arrival(wait, WaitSite{WaitPhase::kCombineReceive, p.source, p.channel, p.rows}, p.rows - left + m.count - 1);
      m.ok = 0;
      return;
    }
    e.out_position = RowHeader::position(s.number, left - m.count);
    e.out_row = chunk + static_cast<u64>(s.in_chunk++) * g.row_bytes;
  }
}

// One warp: one partial row.
DEV void reduce_partial(const CombineArgs& a, const WaitContext& wait, CombineShared& s, u32 channel,
                        const PlanEntry& e) {
  const RowShape& shape = a.call.shape;
  const u16** list = warp_pointers(s);
  if (!find_rows(a, wait, s, channel, e)) return;
  if (simt::lane() == 0) *reinterpret_cast<RowHeader*>(e.out_row) = RowHeader::make(0, e.token, e.out_position);
  reduce_rows(reinterpret_cast<u16*>(e.out_row + sizeof(RowHeader)), list, nullptr, e.num_rows, a.hidden);
  for (u32 k = simt::lane(); shape.has_weights && k < shape.topk; k += simt::kWarp)
    reinterpret_cast<float*>(e.out_row + shape.weights())[k] = sum_weights(shape, e, k);
  simt::sync_warp();
}

// Thread 0, after a batch: sends the chunk when it is full or the stream has ended.
DEV bool send_partials(const CombineArgs& a, const WaitContext& wait, CombineShared& s, const PartialOut& p, u32 left) {
  const StreamGeometry& g = a.call.geometry;
  if (s.in_chunk < g.rows_per_chunk && left != 0) return true;
  const u64 bytes = static_cast<u64>(s.in_chunk) * g.row_bytes;
  add_stat(a.rank, p.source, PeerStat::kRowsOut, s.in_chunk);
  add_stat(a.rank, p.source, PeerStat::kBytesOut, bytes);
  simt::st_relaxed_sys(p.sent_word, s.number + 1);
  const OutgoingChunk chunk{Direction::kCombine, p.source, p.channel, s.number, p.unit_offset, p.remote_offset, bytes};
  const bool ok = send_chunk(a.rank, wait, chunk, g);
  ++s.number;
  s.in_chunk = 0;
  return ok;
}

// Thread 0: no rank of the node has more rows for a source than that has tokens here.
DEV bool all_taken(const CombineArgs& a, const WaitContext& wait, const MergeShared& m, u32 channel) {
  for (u32 g = 0; g < m.num_from; ++g) {
    const u32 peer = a.rank.topology.crowd_member(m.source, g);
    if (m.from[g].remaining != 0)
      return bad_arrival(wait, WaitSite{WaitPhase::kCombineReceive, peer, channel, 0}, m.from[g].remaining);
  }
  return true;
}

// The whole block: one remote source. False: the call failed.
DEV bool combine_for(const CombineArgs& a, const WaitContext& wait, CombineShared& s, u32 channel, u32 source) {
  const PartialOut p = partial_out(a, source, channel);
  if (p.rows == 0) return true;
  open_contributions(a.rank, a.call, s.merge, source, channel, own_rows(a, source, channel));
  if (simt::tid() == 0) {
    s.number = simt::ld_relaxed_sys(p.sent_word);
    s.in_chunk = 0;
  }
  u32 ok = all_see_ok(s);
  WarpTurn turn;
  for (u32 done = 0; ok == 1 && done < p.rows;) {
    if (simt::kLanesInParallel && simt::warp() == 0) look_around(a.call, s.merge, channel);
    if (simt::tid() == 0) plan_partials(a, wait, s, p, p.rows - done);
    ok = all_see_ok(s);
    if (ok != 1) break;
    for (u32 i = turn.first(s.merge.count); i < s.merge.count; i += simt::num_warps())
      reduce_partial(a, wait, s, channel, s.merge.plan[i]);
    done += s.merge.count;
    simt::sync_block();
    if (simt::ld_acquire_cta(&s.merge.bad) != 0) return false;
    if (simt::tid() == 0 &&
        !(rows_stayed(a, wait, s.merge, channel) && (done < p.rows || all_taken(a, wait, s.merge, channel))))
      s.merge.ok = 0;
    if (all_see_ok(s) != 1) return false;
    release_contributions(s.merge);
    if (simt::tid() == 0 && !send_partials(a, wait, s, p, p.rows - done)) s.merge.ok = 0;
    ok = all_see_ok(s);
  }
  return ok != 0;
}

// (2), the whole block: every remote source that this rank stands for.
DEV void combine_for_others(const CombineArgs& a, const WaitContext& wait, CombineShared& s, u32 channel) {
  const TopologyView& t = a.rank.topology;
  // Ascending on every rank, as the contributions are: the smallest unfinished source always has all its parts.
  for (u32 source = 0; source < t.num_ranks; ++source)
    if (!t.is_local(source) && !t.is_absent(source) && t.landing_rank(source, t.cell) == t.rank)
      if (!combine_for(a, wait, s, channel, source)) return;
}

// The whole block, before it reads what other ranks have written. One block of the launch compares.
DEV bool identify_combine(const CombineArgs& a, const WaitContext& wait, u32 channel, bool own) {
  const bool ok = channel != 0 || !own || identify(a.rank, a.call, CallKind::kCombine, wait);
  const IdentityState& seen = *a.call.identities;  // sums for other nodes go out before those have come
  const bool all = simt::sync_block_and(simt::warp() != 0 ||
                                        await_identified(a.rank, a.call, own ? &seen.compared : &seen.node, wait));
  return ok && all;
}

KERNEL KERNEL_BOUNDS(kMaxBlockLanes) throughput_combine(CombineArgs a) {
  CombineShared& shared = simt::smem<CombineShared>();
  const WaitContext wait = wait_context(a.rank);
  const u32 roles = a.rank.topology.num_nodes > 1 ? 3 : 2, channel = simt::bid() / roles, role = simt::bid() % roles;
  if (!may_start(wait)) return;
  if (role == 0)
    contribute_all(a, wait, shared.contribute, channel);
  else if (!identify_combine(a, wait, channel, role == 1))
    return;
  else if (role == 1)
    combine_own(a, wait, shared, channel);
  else
    combine_for_others(a, wait, shared, channel);
  end_identified(a.call);
}

}  // namespace uccl
