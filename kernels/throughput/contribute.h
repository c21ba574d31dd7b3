// What combine is told, and what a rank does with rows that others sum: it puts them into rings, or where its arena holds
// them, only says where they are and waits until they have been read.
#pragma once
#include "kernels/throughput/identify.h"
#include "kernels/throughput/merge.h"

namespace uccl {

// Reading state of the partial sums from one cell, in workspace.
struct PartialState {
  u64 head, released;
  u64 seen;  // the stream's tail when it was last read, which is a trip to the host on a GPU
  u32 row, remaining;
};

struct CombineArgs {
  RankContext rank;
  ThroughputCall call;
  const u16* x;  // bf16 [rows, hidden], in received order
  const float* topk_weights;  // [rows, topk] or null
  const i32* recv_src_idx;  // [rows]
  const u16* bias0;  // bf16 [num_tokens, hidden] or null
  const u16* bias1;
  u16* out;  // bf16 [num_tokens, hidden]
  float* out_weights;  // [num_tokens, topk] or null
  u16* scratch;  // bf16 [C, warps of a block, hidden], several nodes only
  PartialState* partials;  // [C, cells] workspace
  const u8* const* arenas;  // as row_in_memory's: those of the node's ranks; null: they have none
  u64 x_offset;  // of x in this rank's
  u32 x_in_arena;  // 1: x lies there, and is read there by whoever sums its rows
  u32 hidden;
};

// This rank's rows for one source and channel, as it finds them when it sums for that source itself.
DEV OwnRows own_rows(const CombineArgs& a, u32 source, u32 channel) {
  const u64 at = a.call.recv_begin[source * a.call.geometry.num_channels + channel];
  return OwnRows{reinterpret_cast<const u8*>(a.x + at * a.hidden), a.recv_src_idx + at,
                 a.call.shape.has_weights ? a.topk_weights + at * a.call.shape.topk : nullptr};
}

// Whether this rank's rows are read where they lie. Never where ranks may be left out: sums that have been read cannot be
// undone when the rows' owner gives up.
DEV bool rows_stay(const CombineArgs& a) { return a.arenas != nullptr && a.x_in_arena != 0 && a.rank.shrink == 0; }

// Another rank of this node sums what this rank has for a source.
DEV bool sums_elsewhere(const CombineArgs& a, u32 source) {
  const TopologyView& t = a.rank.topology;
  return !t.is_absent(source) && t.landing_rank(source, t.cell) != t.rank;
}

// What the lane that stands for a source knows of this rank's rows for it.
struct Contributing {
  u32 source, rows, done;  // rows: of the call; 0: none, or there will be no more
  u64 number;  // of the chunk that comes next
};
DEV Contributing contributing(const CombineArgs& a, bool leads, u32 channel, u32 source, u32 end) {
  const TopologyView& t = a.rank.topology;
  Contributing k{source, 0, 0, 0};
  if (source >= end) return k;
  const u32 rows = a.call.recv_tokens[source * a.call.geometry.num_channels + channel];
  if (rows == 0) return k;
  if (!sums_elsewhere(a, source)) {  // they stay: open_contributions finds them
    if (leads && !(a.rank.shrink && masked(a.rank, source))) add_stat(a.rank, t.rank, PeerStat::kRowsOut, rows);
    return k;
  }
  k.rows = rows;
  k.number = simt::ld_relaxed_sys(contribution_stream(a.rank, a.call.layout, t.rank, source, channel).tail);
  return k;
}

// One warp: waits until the source of some lane has room for a chunk, or is masked. False: the call has failed.
DEV bool await_room(const CombineArgs& a, const WaitContext& wait, const Contributing& k, u32 channel,
                    TeamRound* round) {
  const StreamGeometry& g = a.call.geometry;
  const bool on = k.done < k.rows;
  const u64* head = contribution_stream(a.rank, a.call.layout, a.rank.topology.rank, on ? k.source : 0, channel).heads;
  bool room = false, absent = false, ok = true;
  for (u32 polls = 0;; ++polls) {
    absent = on && a.rank.shrink && masked(a.rank, combine_peer(a.rank, k.source));
    room = on && !absent && k.number - simt::ld_acquire_sys(head) < g.num_slots;  // pairs with release_contributions
    const simt::mask_t waiting = simt::ballot(on);
    if (simt::ballot(room || absent) != 0) break;
    if (simt::popcount(waiting) > 1 && polls < simt::kSpinsPerCheck) {
      simt::pause();
      continue;
    }
    // In ascending order, as whoever reads them: see combine_for_others.
    const u32 first = simt::first_lane(waiting);
    if (simt::lane() == first) {
      const WaitSite site{WaitPhase::kCombineSend, combine_peer(a.rank, k.source), channel, k.number};
      WaitContext patient = wait;
      patient.deadline_ns = reader_deadline(a.rank, a.call, wait);
      ok = wait_for_slot(a.rank, patient, site, g, SystemWord{head}, &absent);
      room = ok && !absent;
    }
    break;
  }
  *round = TeamRound{simt::ballot(room), simt::ballot(absent)};
  const bool all = simt::ballot(!ok) == 0;
  simt::sync_warp();  // what each lane acquired is visible to all
  return all;
}

// One warp: row `i` of a source's chunk, into its place. `bytes`: about what all channels write before a row is read; a
// small ring stays in a CPU's caches.
DEV void write_contribution(const CombineArgs& a, const Contributing& k, u32 channel, u32 i) {
  const StreamGeometry& g = a.call.geometry;
  const RowShape& shape = a.call.shape;
  const TopologyView& t = a.rank.topology;
  const u64 at = a.call.recv_begin[k.source * g.num_channels + channel] + k.done + i;
  const u64 all = static_cast<u64>(k.rows) * g.num_channels * shape.payload_bytes;
  u8* const row = own_data(a.rank) + a.call.layout.contributions(k.source) + g.chunk(channel, k.number) +
                  static_cast<u64>(i) * g.row_bytes;
  const u64 place = rows_stay(a) ? RowPlace::in_arena(t.local, a.x_offset + at * shape.payload_bytes) : 0;
  if (simt::lane() == 0)
    *reinterpret_cast<RowHeader*>(row) = RowHeader::make(place, static_cast<u32>(a.recv_src_idx[at]),
                                                         RowHeader::position(k.number, k.rows - 1 - k.done - i));
  for (u32 j = simt::lane(); shape.has_weights && j < shape.topk; j += simt::kWarp)
    reinterpret_cast<float*>(row + shape.weights())[j] = a.topk_weights[at * shape.topk + j];
  if (place == 0)
    copy_row_shared(row + sizeof(RowHeader), reinterpret_cast<const u8*>(a.x + at * a.hidden), shape.payload_bytes,
                    all < g.unit_bytes ? all : g.unit_bytes);
}

// A team puts this rank's rows into rings, a lane a source: in rounds, of a chunk of each source that has room. False: the
// call has failed.
DEV bool contribute(const CombineArgs& a, const WaitContext& wait, Team& team, u32 channel, u32 source, u32 end) {
  const bool leads = team.member() == 0;
  Contributing k = contributing(a, leads, channel, source, end);
  u32 dealt = 0;  // rows of the rounds before, so that the warps' turns go on where they ended
  while (simt::ballot(k.done < k.rows) != 0) {
    TeamRound round{0, 0};
    const bool ok = !leads || await_room(a, wait, k, channel, &round);
    if (!hear_round(team, ok, &round)) return false;
    if (round.gone >> simt::lane() & 1) k.rows = k.done = 0;
    const u32 n = round.here >> simt::lane() & 1 ? rows_in_chunk(a.call.geometry, k.rows - k.done) : 0;
    const u32 turn = (team.member() + team.size - dealt % team.size) % team.size;
    simt::deal_rows(
        simt::kWarp, 1, turn, team.size, [&](u32) { return n; },
        [&](u32 lane, u32 i, u32) {
          const Contributing one{simt::shfl(k.source, lane), simt::shfl(k.rows, lane), simt::shfl(k.done, lane),
                                 simt::shfl(k.number, lane)};
          write_contribution(a, one, channel, i);
          return true;
        });
    finish_turn(team);
    if (leads && n != 0) {
      u64* const tail =
          const_cast<u64*>(contribution_stream(a.rank, a.call.layout, a.rank.topology.rank, k.source, channel).tail);
      simt::st_release_sys(tail, k.number + 1);  // pairs with look_ahead's acquire
    }
    k.done += n;
    k.number += n != 0;
    dealt += simt::warp_sum(n);
  }
  if (!leads || k.rows == 0) return true;
  const u32 reader = combine_peer(a.rank, k.source);
  add_stat(a.rank, reader, PeerStat::kRowsOut, k.rows);
  const u64 written = a.call.geometry.row_bytes - (rows_stay(a) ? a.call.shape.payload_bytes : 0);
  add_stat(a.rank, reader, PeerStat::kBytesOut, static_cast<u64>(k.rows) * written);
  return true;
}

// One warp: the rows that this rank has put into the ring for a source have been read, so its caller may change them.
DEV void await_read(const CombineArgs& a, const WaitContext& wait, u32 channel, u32 source) {
  const TopologyView& t = a.rank.topology;
  if (simt::lane() != 0 || t.is_absent(source) || t.landing_rank(source, t.cell) == t.rank) return;
  if (a.call.recv_tokens[source * a.call.geometry.num_channels + channel] == 0) return;
  const StreamAddress s = contribution_stream(a.rank, a.call.layout, t.rank, source, channel);
  const WaitSite site{WaitPhase::kCombineSend, combine_peer(a.rank, source), channel, simt::ld_relaxed_sys(s.tail)};
  bool absent;  // then nobody reads them
  WaitContext patient = wait;
  patient.deadline_ns = reader_deadline(a.rank, a.call, wait);
  const bool ok = wait_or_mask(
      a.rank, patient, site, SystemWord{static_cast<const u64*>(s.heads)},
      [&](u64 seen) { return seen >= site.expected; }, &absent);
  if (ok && !absent) keeps_step(a.rank, wait, site, simt::ld_acquire_sys(s.heads), site.expected);
}

// Sources that a team gives rows to: those from `first` on, below `end`; on a CPU each warp by itself takes every so many.
struct Receivers {
  u32 first, end;
};

// A team: all of its sources.
DEV void contribute_all(const CombineArgs& a, const WaitContext& wait, Team& team, const Receivers& to, u32 channel) {
  const u32 step = a.call.share_rows != 0 ? 1 : simt::num_warps();
  for (u32 s = to.first; s < to.end; s += step * simt::kWarp)
    if (!contribute(a, wait, team, channel, s + step * simt::lane(), to.end)) return;
  if (!rows_stay(a)) return;
  hear_leader(team, TeamWord::kGo);  // all tails are there
  for (u32 s = to.first + step * team.member(); s < to.end; s += step * team.size) await_read(a, wait, channel, s);
}

// How the rows that a channel gives are shared out on a GPU with several nodes: the block that sums for other nodes has
// less to do than the one that gives, so its last warps give to the last sources.
struct GivingPlan {
  u32 sources;  // that the giving block gives to, the first ones
  u32 helpers;  // warps of the other block that give to the rest
};
// The whole warp. A row that is given is read and written, one that is summed is read, and a sum is written.
DEV GivingPlan plan_giving(const CombineArgs& a, u32 channel) {
  const TopologyView& t = a.rank.topology;
  const u32 warps = simt::num_warps(), channels = a.call.geometry.num_channels;
  const GivingPlan alone{t.num_ranks, 0};
  if (t.num_nodes == 1 || a.call.share_rows == 0 || warps == 1 || rows_stay(a)) return alone;
  const auto given = [&](u32 source) {
    return sums_elsewhere(a, source) ? a.call.recv_tokens[source * channels + channel] : 0;
  };
  u32 out = 0, summed = 0;
  for (u32 s = simt::lane(); s < t.num_ranks; s += simt::kWarp) {
    out += given(s);
    if (t.is_local(s) || t.is_absent(s) || t.landing_rank(s, t.cell) != t.rank) continue;
    summed += a.call.stream_rows[s * channels + channel];
    for (u32 g = 0; g < t.crowd_size(s); ++g)
      summed += a.call.reducer_tokens[(static_cast<u64>(s) * a.call.readers + g) * channels + channel];
  }
  out = simt::warp_sum(out);
  summed = simt::warp_sum(summed);
  if (summed >= 2 * out) return alone;
  u32 kept = 0;
  const u32 sources = sources_with(t.num_ranks, (2 * out + summed) / 4, &kept, given), rest = 2 * (out - kept);
  if (rest == 0) return alone;
  const u32 helpers = static_cast<u32>((static_cast<u64>(warps) * rest + (rest + summed) / 2) / (rest + summed));
  return GivingPlan{sources, helpers < 1 ? 1 : helpers < warps ? helpers : warps - 1};
}

// One lane: a batch read rows where the rank with this index in the node keeps them.
DEV bool read_in_place(const MergeShared& m, u32 local) {
  for (u32 i = 0; i < m.count; ++i)
    for (u32 j = 0; j < m.plan[i].num_rows; ++j) {
      if (j == m.plan[i].own_row) continue;
      const u64 place = reinterpret_cast<const RowHeader*>(m.plan[i].rows[j])->destinations;
      if (place != 0 && RowPlace::local(place) == local) return true;
    }
  return false;
}

// The warp that planned a batch, when all warps have read it and before that is made known: false when a rank whose rows
// were read where they lie gave its call up by now, for then its caller may have written over them. It says so before it
// returns to its caller. Whoever knows that its rows were read has ended this call, and may give up a later one.
DEV bool rows_stayed(const CombineArgs& a, const WaitContext& wait, const MergeShared& m, u32 channel) {
  if (a.arenas == nullptr || a.rank.shrink) return true;
  bool stayed = true;
  for (u32 g = simt::lane(); g < m.num_from; g += simt::kWarp) {
    const u32 rank = a.rank.topology.crowd_member(m.source, g);
    if (rank == a.rank.topology.rank) continue;
    if (simt::ld_acquire_sys(word(control_of(a.rank, rank), ControlLayout::kAbort)) == 0) continue;
    if (!read_in_place(m, a.rank.topology.local_of[rank])) continue;
    record_fault(wait, WaitSite{WaitPhase::kCombineReceive, rank, channel, 0}, FaultKind::kWithdrawn, 0);
    stayed = false;
  }
  return warp_agree(stayed);
}

}  // namespace uccl
