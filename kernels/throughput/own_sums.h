// Combine's role (1) (combine.h): a block sums this rank's own tokens.
#pragma once
#include "kernels/throughput/contribute.h"

namespace uccl {

struct CombineShared {
  MergeShared merge;
  TeamWords teams;
  u32 cursor, in_chunk;  // next token, or rows already in the outgoing chunk
  u64 number;  // outgoing chunk
  u64 takers[kMaxPlan];  // destinations() in this node, of the cursor's token and those behind it
  // Behind it, a warp: kMaxPartials + 1 payload pointers (also enough for kMaxRanksPerNode).
  static constexpr u64 bytes(u32 warps) { return align_up(sizeof(CombineShared), 16) + warps * pointer_bytes(); }
  static constexpr u64 pointer_bytes() { return (kMaxPartials + 2) * 8; }
};
static_assert(kMaxRanksPerNode <= kMaxPartials + 1);

DEV const u16** warp_pointers(CombineShared& s) {
  return reinterpret_cast<const u16**>(reinterpret_cast<u8*>(&s) + align_up(sizeof(CombineShared), 16) +
                                       simt::warp() * CombineShared::pointer_bytes());
}

DEV void open_partials(const CombineArgs& a, u32 channel) {
  const TopologyView& t = a.rank.topology;
  for (u32 n = simt::tid(); n < t.num_cells; n += simt::ntid()) {
    PartialState& p = a.partials[channel * t.num_cells + n];
    p = PartialState{};
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
    PartialState& p = a.partials[channel * t.num_cells + n];
    if (p.seen > p.head) continue;
    const u64* tail = partial_stream(a.rank, a.call.layout, n, channel).tail;
    const u64 head = p.head;
    const WaitSite site{WaitPhase::kCombineReceive, t.landing_rank(t.rank, n), channel, head + 1};
    u64 there = simt::ld_acquire_sys(tail);
    if (there <= head) {
      if (!may_wait) return Step::kNotYet;
      const u64 begin = simt::now_ns();
      bool absent;
      if (!wait_or_mask(a.rank, wait, site, SystemWord{tail}, [&](u64 seen) { return (there = seen) > head; }, &absent))
        return Step::kFailed;
      if (channel == 0) add_stat(a.rank, site.peer, PeerStat::kWaitNs, simt::now_ns() - begin);
      if (absent) continue;
    }
    p.seen = there;
    if (!tail_fits(wait, site, a.call.geometry, head, there)) return Step::kFailed;
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
                      u64 had, u64 takers) {
  const u32 token = static_cast<u32>(site.expected);
  const u64 differ = had ^ takers;
  for (u32 g = 0; differ != 0 && g < m.num_from; ++g) {
    const u32 rank = a.rank.topology.crowd_member(m.source, g);
    const bool left_out = a.rank.shrink && (had >> g & 1) == 0 && masked(a.rank, rank);
    if ((differ >> g & 1) == 0 || left_out) continue;
    return bad_arrival(wait, WaitSite{site.phase, rank, site.detail, token},
                       m.from[g].remaining == 0 ? kNoToken : m.from[g].token);
  }
  return true;
}

// The warp that plans a batch, before: who takes the tokens that it may come to. On a CPU lane 0 asks for all.
DEV void find_takers(const CombineArgs& a, CombineShared& s, u32 end) {
  const u32 lanes = simt::kLanesInParallel ? simt::kWarp : 1;
  for (u32 i = simt::lane(); i < kMaxPlan && simt::lane() < lanes && s.cursor + i < end; i += lanes)
    s.takers[i] = destinations(a.rank, a.call.is_token_in_rank, s.cursor + i, a.rank.topology.cell);
  simt::sync_warp();
}

// Lane 0 plans up to kMaxPlan of this rank's tokens.
DEV void plan_own(const CombineArgs& a, const WaitContext& wait, CombineShared& s, u32 channel, u32 end) {
  MergeShared& m = s.merge;
  const TopologyView& t = a.rank.topology;
  m.count = 0;
  while (m.count < kMaxPlan && s.cursor < end) {
    const bool may_wait = m.count == 0;
    const u64 takers = s.takers[m.count];
    const bool here = takers != 0;
    Step step = here ? look_ahead(a.rank, wait, a.call, m, channel, may_wait) : Step::kReady;
    if (step == Step::kReady && t.num_nodes > 1) step = look_at_partials(a, wait, channel, s.cursor, may_wait);
    if (step == Step::kFailed) m.ok = 0;
    if (step != Step::kReady) return;
    PlanEntry& e = m.plan[m.count++];
    clear_entry(e);
    e.token = s.cursor;
    const u64 had = here ? take_token(a.call, m, channel, s.cursor, e) : 0;
    const WaitSite site{WaitPhase::kCombineReceive, t.rank, channel, s.cursor};
    if (here && !check_takers(a, wait, m, site, had, takers)) {
      m.ok = 0;
      return;
    }
    if (t.num_nodes > 1) take_partials(a, channel, s.cursor, e);
    ++s.cursor;
  }
}

// Whether plan_side_by_side can plan: on a GPU, with this node's rows only, of ranks that stay.
DEV bool plans_side_by_side(const CombineArgs& a, const MergeShared& m) {
  return simt::kWarp > kMaxPlan && a.call.share_rows != 0 && a.rank.topology.num_nodes == 1 && a.rank.shrink == 0 &&
         m.num_from <= simt::kWarp;
}

// The whole warp, a lane a token: what plan_own plans one after the other, as far as look_around has fetched the rows and
// they are what they must be. False: there is no such token, so plan_own has to wait, or to say what is wrong.
DEV bool plan_side_by_side(const CombineArgs& a, CombineShared& s, u32 channel, u32 end) {
  MergeShared& m = s.merge;
  const u32 lane = simt::lane(), token = s.cursor + lane;
  bool good = lane < kMaxPlan && token < end;
  const u64 takers = good ? s.takers[lane] : 0;
  PlanEntry& e = m.plan[lane % kMaxPlan];  // of a lane that is good
  simt::mask_t taken = 0;  // lanes whose tokens have a row of contribution number `lane`
  if (good) clear_entry(e);
  for (u32 g = 0; g < m.num_from; ++g) {
    const Contribution& k = m.from[g];
    const bool takes = (takers >> g & 1) != 0;
    const simt::mask_t all = simt::ballot(takes);
    if (g == lane) taken = all;
    const u32 ahead = simt::popcount(all & simt::lane_mask_lt());
    const u32 there = ahead < k.fetched ? k.tokens[ahead] : kNoToken;
    good = good && (ahead >= k.remaining ? !takes : there != kNoToken && (takes ? there == token : there > token));
    if (good && takes) add_row(a.call, k, channel, ahead, e);
  }
  const u32 count = simt::first_lane(simt::ballot(!good));  // lanes from kMaxPlan on are never good
  if (lane < count) e.token = token;
  simt::sync_warp();  // all have read the contributions and the cursor: a vote alone orders nothing for plan_own
  if (count == 0) return false;
  const u32 rows = simt::popcount(taken & ((simt::mask_t{1} << count) - 1));
  if (rows != 0) advance(a.call, m.from[lane], rows, token - lane + count);
  if (lane == 0) {
    m.count = count;
    s.cursor = token + count;
  }
  simt::sync_warp();
  return true;
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
  return false;
}

// One warp: one of this rank's tokens.
DEV void reduce_own(const CombineArgs& a, const WaitContext& wait, CombineShared& s, u32 channel, const PlanEntry& e) {
  const RowShape& shape = a.call.shape;
  const u64 at = static_cast<u64>(e.token) * a.hidden;
  const u64 all = static_cast<u64>(a.call.num_tokens) * shape.payload_bytes;
  const RowBias bias{a.bias0 != nullptr ? a.bias0 + at : nullptr, a.bias1 != nullptr ? a.bias1 + at : nullptr};
  const u16** list = warp_pointers(s);
  if (!find_rows(a, wait, s, channel, e)) return give_up(s.merge);
  if (a.rank.topology.num_nodes == 1) {
    sum_rows_out(a.out + at, list, e.num_rows, a.hidden, bias, all);
  } else {
    if (!check_partials(a, wait, channel, e)) return give_up(s.merge);
    u16* own = a.scratch + static_cast<u64>(channel * simt::num_warps() + simt::warp()) * a.hidden;
    if (e.num_rows != 0) sum_rows(own, list, e.num_rows, a.hidden);
    simt::sync_warp();
    const u32 has_own = e.num_rows != 0;
    for (u32 i = simt::lane(); i < e.num_partials; i += simt::kWarp)
      list[i + (i >= e.own_position ? has_own : 0)] = reinterpret_cast<const u16*>(e.partials[i]);
    if (has_own && simt::lane() == 0) list[e.own_position] = own;
    simt::sync_warp();
    sum_rows_out(a.out + at, list, e.num_partials + has_own, a.hidden, bias, all);
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
    simt::st_relaxed_sys(partial_stream(a.rank, a.call.layout, n, channel).heads, p.head);  // for this rank's next call
    send_credit(a.rank, wait, Direction::kCombine, t.landing_rank(t.rank, n), channel, p.head);
  }
}

DEV void combine_own(const CombineArgs& a, const WaitContext& wait, CombineShared& s, u32 channel) {
  const u32 channels = a.call.geometry.num_channels;
  const u32 end = channel_begin(a.call.num_tokens, channels, channel + 1);
  if (simt::tid() == 0) s.cursor = channel_begin(a.call.num_tokens, channels, channel);
  open_partials(a, channel);
  const u32 rank = a.rank.topology.rank;
  WarpTurn turn{simt::num_warps()};
  if (simt::warp() == 0) open_contributions(a.rank, a.call, s.merge, rank, channel, own_rows(a, rank, channel));
  simt::sync_block();
  while (s.cursor < end) {
    simt::sync_block();  // everyone has seen the cursor, and the batch before is given back
    if (simt::warp() == 0) {
      const bool side_by_side = plans_side_by_side(a, s.merge);
      if (simt::kLanesInParallel || side_by_side) look_around(a.call, s.merge, channel);
      find_takers(a, s, end);
      const bool planned = side_by_side && plan_side_by_side(a, s, channel, end);
      if (!planned && simt::lane() == 0) plan_own(a, wait, s, channel, end);
    }
    simt::sync_block();  // the plan is there
    if (s.merge.ok == 0) return;
    for (u32 i = turn.first(s.merge.count); i < s.merge.count; i += simt::num_warps())
      reduce_own(a, wait, s, channel, s.merge.plan[i]);
    simt::sync_block();  // all rows of the batch are read
    if (simt::ld_acquire_cta(&s.merge.bad) != 0) return;
    if (simt::warp() == 0 && !rows_stayed(a, wait, s.merge, channel) && simt::lane() == 0) s.merge.ok = 0;
    simt::sync_block();  // whether they have stayed is said
    if (simt::warp() == 0) release_contributions(s.merge);
    release_partials(a, wait, channel);
  }
}

}  // namespace uccl
