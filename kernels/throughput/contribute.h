// What combine is told, and what a rank does with rows that others sum: it puts them into rings, or where its arena holds
// them, only says where they are and waits until they have been read.
#pragma once
#include "kernels/throughput/merge.h"

namespace uccl {

// Reading state of the partial sums from one cell, in workspace.
struct PartialState {
  u64 head, released;
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

// One warp: this rank's rows for one source and channel.
DEV void contribute(const CombineArgs& a, const WaitContext& wait, u32 channel, u32 source) {
  const StreamGeometry& g = a.call.geometry;
  const RowShape& shape = a.call.shape;
  const TopologyView& t = a.rank.topology;
  const u32 rows = a.call.recv_tokens[source * g.num_channels + channel];
  if (rows == 0 || warp_agree(a.rank.shrink && masked(a.rank, source))) return;
  if (t.landing_rank(source, t.cell) == t.rank) {  // they stay: open_contributions finds them
    if (simt::lane() == 0) add_stat(a.rank, t.rank, PeerStat::kRowsOut, rows);
    return;
  }
  const u32 first = a.call.recv_begin[source * g.num_channels + channel];
  WaitSite site{WaitPhase::kCombineSend, combine_peer(a.rank, source), channel, 0};
  const StreamAddress s = contribution_stream(a.rank, a.call.layout, t.rank, source, channel);
  u64* tail = const_cast<u64*>(s.tail);
  u64 number = simt::ld_relaxed_sys(tail);
  // About what all channels write before a row is read: a small ring stays in the caches.
  const u64 all = static_cast<u64>(rows) * g.num_channels * shape.payload_bytes;
  const u64 bytes = all < g.unit_bytes ? all : g.unit_bytes;
  const bool stays = rows_stay(a);
  for (u32 done = 0; done < rows; ++number) {
    bool room = true;
    if (simt::lane() == 0) {
      bool absent;
      const SystemWord head{static_cast<const u64*>(s.heads)};
      site.expected = number;
      room = wait_for_slot(a.rank, wait, site, g, head, &absent) && !absent;
    }
    if (!warp_agree(room)) return;
    const u32 n = rows - done < g.rows_per_chunk ? rows - done : g.rows_per_chunk;
    for (u32 i = 0; i < n; ++i) {
      const u64 at = first + done + i;
      u8* row = const_cast<u8*>(s.unit) + g.chunk(channel, number) + static_cast<u64>(i) * g.row_bytes;
      const u64 place = stays ? RowPlace::in_arena(t.local, a.x_offset + at * shape.payload_bytes) : 0;
      if (simt::lane() == 0)
        *reinterpret_cast<RowHeader*>(row) = RowHeader::make(place, static_cast<u32>(a.recv_src_idx[at]),
                                                             RowHeader::position(number, rows - 1 - done - i));
      if (!stays)
        copy_row_shared(row + sizeof(RowHeader), reinterpret_cast<const u8*>(a.x + at * a.hidden), shape.payload_bytes,
                        bytes);
      for (u32 k = simt::lane(); shape.has_weights && k < shape.topk; k += simt::kWarp)
        reinterpret_cast<float*>(row + shape.weights())[k] = a.topk_weights[at * shape.topk + k];
    }
    done += n;
    simt::sync_warp();
    if (simt::lane() == 0) simt::st_release_sys(tail, number + 1);  // pairs with look_ahead's acquire
  }
  if (simt::lane() != 0) return;
  add_stat(a.rank, site.peer, PeerStat::kRowsOut, rows);
  const u64 written = g.row_bytes - (stays ? shape.payload_bytes : 0);
  add_stat(a.rank, site.peer, PeerStat::kBytesOut, static_cast<u64>(rows) * written);
}

// One warp: the rows that this rank has put into the ring for a source have been read, so its caller may change them.
DEV void await_read(const CombineArgs& a, const WaitContext& wait, u32 channel, u32 source) {
  const TopologyView& t = a.rank.topology;
  if (simt::lane() != 0 || t.is_absent(source) || t.landing_rank(source, t.cell) == t.rank) return;
  if (a.call.recv_tokens[source * a.call.geometry.num_channels + channel] == 0) return;
  const StreamAddress s = contribution_stream(a.rank, a.call.layout, t.rank, source, channel);
  const WaitSite site{WaitPhase::kCombineSend, combine_peer(a.rank, source), channel, simt::ld_relaxed_sys(s.tail)};
  bool absent;  // then nobody reads them
  const bool ok = wait_or_mask(
      a.rank, wait, site, SystemWord{static_cast<const u64*>(s.heads)}, [&](u64 seen) { return seen >= site.expected; },
      &absent);
  if (ok && !absent) keeps_step(a.rank, wait, site, simt::ld_acquire_sys(s.heads), site.expected);
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

// Thread 0, when all warps have read a batch and before that is made known: false when a rank whose rows were read where
// they lie gave its call up by now, for then its caller may have written over them. It says so before it returns to its
// caller. Whoever knows that its rows were read has ended this call, and may give up a later one.
DEV bool rows_stayed(const CombineArgs& a, const WaitContext& wait, const MergeShared& m, u32 channel) {
  if (a.arenas == nullptr || a.rank.shrink) return true;
  for (u32 g = 0; g < m.num_from; ++g) {
    const u32 rank = a.rank.topology.crowd_member(m.source, g);
    if (rank == a.rank.topology.rank) continue;
    if (simt::ld_acquire_sys(word(control_of(a.rank, rank), ControlLayout::kAbort)) == 0) continue;
    if (!read_in_place(m, a.rank.topology.local_of[rank])) continue;
    record_fault(wait, WaitSite{WaitPhase::kCombineReceive, rank, channel, 0}, FaultKind::kWithdrawn, 0);
    return false;
  }
  return true;
}

}  // namespace uccl
