// Combine's inner step: the rows that the ranks of a node have for one source, merged by token.
//
// A reducing block works in batches. Lane 0 plans: it finds the next tokens and where their rows are, and never waits
// while it holds an unfinished batch (its readers may be needed to free what it would wait for). Then all warps reduce
// one planned row each, and only after that are the rings' heads released.
#pragma once
#include "kernels/throughput/common.h"

namespace uccl {

inline constexpr u32 kMaxPlan = 16;       // rows of a batch
inline constexpr u32 kMaxPartials = 64;   // other nodes that one token may be combined from

// Reading state of one contribution stream, in shared memory.
struct Contribution {
  StreamAddress stream;
  u64 head;         // chunk being read
  u64 released;     // head as its writer knows it
  u32 row;          // in that chunk
  u32 remaining;    // rows of this call
  u32 token;        // of the next row; valid when `ready`
  u32 ready;
};

struct PlanEntry {
  const u8* rows[kMaxRanksPerNode];  // of this node's ranks, ascending
  const u8* partials[kMaxPartials];  // of other nodes, ascending; own_position says where this node's sum goes
  u8* out_row;                       // a stream row to fill (header, payload, weights), or null
  u32 num_rows, num_partials, own_position, token;
};

struct MergeShared {
  Contribution from[kMaxRanksPerNode];
  PlanEntry plan[kMaxPlan];
  u32 count;     // entries planned
  u32 finished;  // nothing is left
  u32 ok;
};

// Lanes of the block: opens the contributions to `source` on a channel.
DEV void open_contributions(const RankContext& c, const ThroughputCall& call, MergeShared& m, u32 source, u32 channel) {
  const u32 channels = call.geometry.num_channels;
  for (u32 g = simt::tid(); g < c.topology.local_size; g += simt::ntid()) {
    Contribution& k = m.from[g];
    const u32 rank = c.topology.member(c.topology.node, g);
    k.stream = contribution_stream(c, call.layout, rank, source, channel);
    k.head = k.released = simt::ld_relaxed_sys(k.stream.heads);
    k.row = 0;
    k.remaining = call.reducer_tokens[(static_cast<u64>(source) * call.readers + g) * channels + channel];
    k.ready = 0;
  }
  if (simt::tid() == 0) m.ok = 1;
  simt::sync_block();
}

DEV const u8* contribution_row(const ThroughputCall& call, const Contribution& k, u32 channel) {
  return k.stream.unit + call.geometry.chunk(channel, k.head) + static_cast<u64>(k.row) * call.geometry.row_bytes;
}

enum class Step : u32 { kReady = 0, kNotYet, kFailed };

// Lane 0: the next row of every unfinished contribution is readable. Waits only when `may_wait`.
DEV Step look_ahead(const RankContext& c, const WaitContext& wait, const ThroughputCall& call, MergeShared& m,
                    u32 channel, bool may_wait) {
  for (u32 g = 0; g < c.topology.local_size; ++g) {
    Contribution& k = m.from[g];
    if (k.remaining == 0 || k.ready) continue;
    if (simt::ld_acquire_sys(k.stream.tail) <= k.head) {  // pairs with the contributor's release of its tail
      if (!may_wait) return Step::kNotYet;
      const u32 peer = c.topology.member(c.topology.node, g);
      const u64 begin = simt::now_ns();
      const u64 head = k.head;
      const u64* tail = k.stream.tail;
      if (!wait_until(
              wait, WaitSite{WaitPhase::kCombineReceive, peer, channel, head + 1},
              [&] { return simt::ld_acquire_sys(tail); }, [&](u64 seen) { return seen > head; }))
        return Step::kFailed;
      add_stat(c, peer, PeerStat::kWaitNs, simt::now_ns() - begin);
    }
    k.token = reinterpret_cast<const RowHeader*>(contribution_row(call, k, channel))->token;
    k.ready = 1;
  }
  return Step::kReady;
}

// Lane 0: moves the rows of the smallest waiting token (or of `token`, when not kNoToken) into the entry.
inline constexpr u32 kNoToken = ~0u;
DEV void take_token(const RankContext& c, const ThroughputCall& call, MergeShared& m, u32 channel, u32 token,
                    PlanEntry& p) {
  if (token == kNoToken)
    for (u32 g = 0; g < c.topology.local_size; ++g)
      if (m.from[g].remaining != 0 && m.from[g].token < token) token = m.from[g].token;
  p.token = token;
  for (u32 g = 0; g < c.topology.local_size; ++g) {
    Contribution& k = m.from[g];
    if (k.remaining == 0 || k.token != token) continue;
    p.rows[p.num_rows++] = contribution_row(call, k, channel);
    k.ready = 0;
    --k.remaining;
    if (++k.row < call.geometry.rows_per_chunk && k.remaining != 0) continue;
    ++k.head;
    k.row = 0;
  }
}

// After the batch has been reduced: gives the chunks back.
DEV void release_contributions(const RankContext& c, MergeShared& m) {
  for (u32 g = simt::tid(); g < c.topology.local_size; g += simt::ntid()) {
    Contribution& k = m.from[g];
    if (k.released == k.head) continue;
    simt::st_release_sys(k.stream.heads, k.head);  // pairs with the contributor's wait for a slot
    k.released = k.head;
  }
}

// One lane per k: fp32 sum over rows of the weight of k, in the order of `rows`.
DEV float sum_weights(const RowShape& shape, const u8* const* rows, u32 count, u32 k) {
  float sum = 0.0f;
  for (u32 i = 0; i < count; ++i) sum += reinterpret_cast<const float*>(rows[i] + shape.weights())[k];
  return sum;
}

// One warp: payload pointers of stream rows, for reduce_rows.
DEV void payloads(const u8* const* rows, u32 count, const u16** out) {
  for (u32 i = simt::lane(); i < count; i += simt::kWarp)
    out[i] = reinterpret_cast<const u16*>(rows[i] + sizeof(RowHeader));
  simt::sync_warp();
}

}  // namespace uccl
