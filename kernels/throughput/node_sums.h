// Combine's role (2) (combine.h), with several nodes: a team sums its cell's rows of the remote sources that this rank
// stands for, and sends a partial row for each token.
#pragma once
#include "kernels/throughput/own_sums.h"

namespace uccl {

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

// One warp: one partial row. False: the call has failed.
DEV bool reduce_partial(const CombineArgs& a, const WaitContext& wait, CombineShared& s, u32 channel,
                        const PlanEntry& e) {
  const RowShape& shape = a.call.shape;
  const u16** list = warp_pointers(s);
  if (!find_rows(a, wait, s, channel, e)) return false;
  if (simt::lane() == 0) *reinterpret_cast<RowHeader*>(e.out_row) = RowHeader::make(0, e.token, e.out_position);
  // With sum_rows the kernel would need more registers than a lane of sm_89 has.
  reduce_rows(reinterpret_cast<u16*>(e.out_row + sizeof(RowHeader)), list, nullptr, e.num_rows, a.hidden);
  for (u32 k = simt::lane(); shape.has_weights && k < shape.topk; k += simt::kWarp)
    reinterpret_cast<float*>(e.out_row + shape.weights())[k] = sum_weights(shape, e, k);
  simt::sync_warp();
  return true;
}

// Lane 0, after a batch: sends the chunk when it is full or the stream has ended.
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

// Lane 0: no rank of the node has more rows for a source than that has tokens here.
DEV bool all_taken(const CombineArgs& a, const WaitContext& wait, const MergeShared& m, u32 channel) {
  for (u32 g = 0; g < m.num_from; ++g) {
    const u32 peer = a.rank.topology.crowd_member(m.source, g);
    if (m.from[g].remaining != 0)
      return bad_arrival(wait, WaitSite{WaitPhase::kCombineReceive, peer, channel, 0}, m.from[g].remaining);
  }
  return true;
}

// The leader's warp: what its team does next for a source of which `left` rows are still to come.
DEV TeamWord plan_turn(const CombineArgs& a, const WaitContext& wait, CombineShared& s, u32 channel, u32 source,
                       u32 left) {
  if (simt::kLanesInParallel) look_around(a.call, s.merge, channel);
  u32 ok = 0;
  if (simt::lane() == 0) {
    plan_partials(a, wait, s, partial_out(a, source, channel), left);
    ok = s.merge.ok;
  }
  ok = simt::shfl(ok, 0);
  return ok == 0 ? TeamWord::kFailed : ok == kSourceLeftOut ? TeamWord::kNone : TeamWord::kGo;
}

// The leader's warp, when its team has reduced a batch: gives the rows back, and sends the chunk if it is full.
DEV bool end_turn(const CombineArgs& a, const WaitContext& wait, CombineShared& s, u32 channel, u32 source, u32 left) {
  if (!rows_stayed(a, wait, s.merge, channel)) return false;
  if (!warp_agree(simt::lane() != 0 || left != 0 || all_taken(a, wait, s.merge, channel))) return false;
  release_contributions(s.merge);
  return warp_agree(simt::lane() != 0 || send_partials(a, wait, s, partial_out(a, source, channel), left));
}

// A team: one remote source. False: the call failed.
DEV bool combine_for(const CombineArgs& a, const WaitContext& wait, CombineShared& s, Team& team, u32 channel,
                     u32 source) {
  const u32 rows = a.call.stream_rows[source * a.call.geometry.num_channels + channel];
  const bool leads = team.member() == 0;
  if (leads && rows != 0) {
    open_contributions(a.rank, a.call, s.merge, source, channel, own_rows(a, source, channel));
    if (simt::lane() == 0) {
      s.number = simt::ld_relaxed_sys(partial_out(a, source, channel).sent_word);
      s.in_chunk = 0;
    }
  }
  WarpTurn turn{team.size};
  for (u32 left = rows; left != 0;) {
    const TeamWord said = hear_leader(team, leads ? plan_turn(a, wait, s, channel, source, left) : TeamWord::kGo);
    if (said != TeamWord::kGo) return said == TeamWord::kNone && finish_turn(team);
    const u32 count = s.merge.count;
    bool ok = true;
    for (u32 i = turn.first(count); ok && i < count; i += team.size)
      ok = reduce_partial(a, wait, s, channel, s.merge.plan[i]);
    if (!ok || !finish_turn(team)) return leave_team(team);
    left -= count;
    if (leads && !end_turn(a, wait, s, channel, source, left)) return leave_team(team);
  }
  return true;
}

// (2), a team: every remote source that this rank stands for.
DEV void combine_for_others(const CombineArgs& a, const WaitContext& wait, CombineShared& s, Team& team, u32 channel) {
  const TopologyView& t = a.rank.topology;
  // Ascending on every rank, as the contributions are: the smallest unfinished source always has all its parts.
  for (u32 source = 0; source < t.num_ranks; ++source)
    if (!t.is_local(source) && !t.is_absent(source) && t.landing_rank(source, t.cell) == t.rank)
      if (!combine_for(a, wait, s, team, channel, source)) return;
}

}  // namespace uccl
