// Combine's inner step: the rows that the ranks of a node or cell have for one source, merged by token.
//
// Warps work in batches. Lane 0 of the first one plans: it finds the next tokens and where their rows are, and never waits
// while it holds an unfinished batch (its readers may be needed to free what it would wait for). Then all warps reduce one
// planned row each, and only after that are the rings' heads released. Rows that the reducing rank itself has are read
// where its caller left them; they pass no ring. Of rows that lie in another rank's arena the ring has headers and weights
// only.
//
// On a GPU a lane that asks other processors by itself waits for each answer in turn, so the whole warp fetches what lane 0
// needs to know. A batch ends where that ends; it is empty where lane 0 has waited for rows that the warp then fetches. Of
// what was fetched, the lanes plan a token each where only this node's rows count (plan_side_by_side).
#pragma once
#include "kernels/throughput/team.h"

namespace uccl {

inline constexpr u32 kMaxPlan = 16;  // rows of a batch
inline constexpr u32 kMaxPartials = 64;  // other nodes that one token may be combined from

// The next of a rank's rows for a source, where its caller left them.
struct OwnRows {
  const u8* payload = nullptr;  // null: not that rank's own, they come through a ring
  const i32* tokens = nullptr;
  const float* weights = nullptr;  // null without weights
};

// Reading state of one contribution stream, in shared memory.
struct Contribution {
  StreamAddress stream;
  u64 head;  // chunk being read
  u64 released;  // head as its writer knows it
  u32 row;  // in that chunk
  u32 remaining;  // rows of this call
  u32 token;  // of the next row; valid when `ready`
  u32 least;  // that it can be: rows come by token
  u32 ready;
  u32 fetched, used;  // rows from the current one on whose tokens look_around has fetched, and how many are spent
  u32 tokens[kMaxPlan];
  OwnRows own;
};

struct PlanEntry {
  const u8* rows[kMaxRanksPerNode];  // of this node's ranks, ascending: ring rows, and own_row's payload
  const u8* partials[kMaxPartials];  // payloads of other nodes, ascending; own_position says where this node's sum goes
  u32 positions[kMaxPartials];  // of those (RowHeader)
  const float* own_weights;  // of rows[own_row]
  u8* out_row;  // a stream row to fill (header, payload, weights), or null
  u32 out_position;  // of out_row
  u32 own_row;  // kNoOwnRow: all rows come from rings
  u32 num_rows, num_partials, own_position, token;
};

struct MergeShared {
  Contribution from[kMaxRanksPerNode];  // of the source's crowd here (topology.h)
  u32 source, num_from;
  PlanEntry plan[kMaxPlan];
  u32 count;  // entries planned
  u32 finished;  // nothing is left
  u32 ok;  // 0: failed; kSourceLeftOut: the source is masked, its stream ends here
  u32 bad;  // 1: a warp has found a row that cannot be
};
inline constexpr u32 kSourceLeftOut = 2;
inline constexpr u32 kNoOwnRow = ~0u;

// Whose turn the entries of a batch are: the warps that reduce, the first ones of a block, go on where the batch before has
// ended.
struct WarpTurn {
  u32 warps, dealt = 0;
  // This warp's first of the `count` entries of the next batch.
  DEV_MEMBER u32 first(u32 count) {
    const u32 at = (simt::warp() + warps - dealt) % warps;
    dealt = (dealt + count) % warps;
    return at;
  }
};

// One lane: an entry without rows.
DEV void clear_entry(PlanEntry& p) {
  p.num_rows = p.num_partials = p.own_position = 0;
  p.own_row = kNoOwnRow;
}

// One warp, the first: opens the contributions to `source` on a channel; `own` are this rank's.
DEV void open_contributions(const RankContext& c, const ThroughputCall& call, MergeShared& m, u32 source, u32 channel,
                            const OwnRows& own) {
  const u32 channels = call.geometry.num_channels;
  const u32 size = c.topology.crowd_size(source);
  for (u32 g = simt::lane(); g < size; g += simt::kWarp) {
    Contribution& k = m.from[g];
    const u32 rank = c.topology.crowd_member(source, g);
    k.stream = contribution_stream(c, call.layout, rank, source, channel);
    k.head = k.released = simt::ld_relaxed_sys(k.stream.heads);
    k.row = 0;
    k.remaining = call.reducer_tokens[(static_cast<u64>(source) * call.readers + g) * channels + channel];
    k.ready = k.fetched = k.used = k.least = 0;
    k.own = rank == c.topology.rank ? own : OwnRows{};
  }
  if (simt::lane() == 0) {
    m.source = source;
    m.num_from = size;
    m.ok = c.shrink && masked(c, source) ? kSourceLeftOut : 1;
    m.bad = 0;
  }
  simt::sync_warp();
}

// The `ahead`th row from the current one on, which came through a ring.
DEV const u8* contribution_row(const ThroughputCall& call, const Contribution& k, u32 channel, u32 ahead = 0) {
  const u32 row = k.row + ahead, per_chunk = call.geometry.rows_per_chunk;
  return k.stream.unit + call.geometry.chunk(channel, k.head + row / per_chunk) +
         static_cast<u64>(row % per_chunk) * call.geometry.row_bytes;
}

inline constexpr u32 kNoToken = ~0u;

// The token of that row, of whichever kind it is; kNoToken: another row stands in its place.
DEV u32 contribution_token(const ThroughputCall& call, const Contribution& k, u32 channel, u32 ahead = 0) {
  if (k.own.payload != nullptr) return static_cast<u32>(k.own.tokens[ahead]);
  const RowHeader header = *reinterpret_cast<const RowHeader*>(contribution_row(call, k, channel, ahead));
  const u64 chunk = k.head + (k.row + ahead) / call.geometry.rows_per_chunk;
  return header.is_at(RowHeader::position(chunk, k.remaining - 1 - ahead)) ? header.token : kNoToken;
}

// One warp, before a batch: fetches the tokens of all rows that the batch may come to and that are here, side by side.
// They lie in other processors' memories; one lane would wait for each of them in turn. Waits for nobody.
DEV void look_around(const ThroughputCall& call, MergeShared& m, u32 channel) {
  for (u32 g = simt::lane(); g < m.num_from; g += simt::kWarp) {
    Contribution& k = m.from[g];
    u64 here = k.remaining;
    if (k.own.payload == nullptr && here != 0) {
      const u64 tail = simt::ld_acquire_sys(k.stream.tail);  // pairs as look_ahead's does
      here = tail > k.head ? (tail - k.head) * call.geometry.rows_per_chunk - k.row : 0;
      if (here > k.remaining) here = k.remaining;  // the last chunk may not be full
    }
    k.fetched = here < kMaxPlan ? static_cast<u32>(here) : kMaxPlan;
    k.used = k.ready;
  }
  simt::sync_warp();  // what each lane acquired is now visible to all
  for (u32 i = simt::lane(); i < m.num_from * kMaxPlan; i += simt::kWarp) {
    Contribution& k = m.from[i / kMaxPlan];
    const u32 ahead = i % kMaxPlan;
    if (ahead < k.fetched) k.tokens[ahead] = contribution_token(call, k, channel, ahead);
  }
  simt::sync_warp();
}

enum class Step : u32 { kReady = 0, kNotYet, kFailed };

// One lane: where it waits for the next row of a contribution.
DEV WaitSite contribution_site(const RankContext& c, const MergeShared& m, u32 channel, u32 g) {
  return WaitSite{WaitPhase::kCombineReceive, c.topology.crowd_member(m.source, g), channel, m.from[g].head + 1};
}

// Lane 0: the token of a contribution's next row is known; false when it cannot be that.
DEV bool make_ready(const RankContext& c, const WaitContext& wait, MergeShared& m, u32 channel, u32 g, u32 token) {
  Contribution& k = m.from[g];
  k.token = token;
  k.ready = 1;
  if (token != kNoToken && token >= k.least) return true;
  return bad_arrival(wait, contribution_site(c, m, channel, g), token);
}

// Lane 0: the next row of every unfinished contribution is readable. Waits only when `may_wait`. kFetched: it knows tokens
// only from look_around, so where it has waited rows are there and not yet known.
template <bool kFetched = simt::kLanesInParallel>
DEV Step look_ahead(const RankContext& c, const WaitContext& wait, const ThroughputCall& call, MergeShared& m,
                    u32 channel, bool may_wait) {
  Step step = Step::kReady;
  for (u32 g = 0; g < m.num_from; ++g) {
    Contribution& k = m.from[g];
    if (k.remaining == 0 || k.ready) continue;
    bool absent = c.shrink && masked(c, c.topology.crowd_member(m.source, g));
    if (!absent && k.used < k.fetched) {
      if (!make_ready(c, wait, m, channel, g, k.tokens[k.used++])) return Step::kFailed;
      continue;
    }
    if (kFetched && !absent && !may_wait) return Step::kNotYet;
    const u64 head = k.head;
    const WaitSite site = contribution_site(c, m, channel, g);
    const bool in_ring = k.own.payload == nullptr;
    const u64* tail = k.stream.tail;
    // Pairs with the contributor's release of its tail.
    if (!absent && in_ring && simt::ld_acquire_sys(tail) <= head) {
      if (!may_wait) return Step::kNotYet;
      const u64 begin = simt::now_ns();
      // Nobody contributes any more to a source that is masked meanwhile.
      const auto left_out = [&] { return c.shrink && masked(c, m.source); };
      if (!wait_or_mask(c, wait, site, SystemWord{tail}, [&](u64 seen) { return seen > head || left_out(); }, &absent))
        return Step::kFailed;
      if (channel == 0) add_stat(c, site.peer, PeerStat::kWaitNs, simt::now_ns() - begin);
      if (left_out()) {
        m.ok = kSourceLeftOut;
        return Step::kNotYet;
      }
    }
    if (absent) {  // what it has not given by now is left out
      k.remaining = 0;
      continue;
    }
    if (in_ring && !tail_fits(wait, site, call.geometry, head, simt::ld_acquire_sys(tail))) return Step::kFailed;
    if (kFetched)
      step = Step::kNotYet;
    else if (!make_ready(c, wait, m, channel, g, contribution_token(call, k, channel)))
      return Step::kFailed;
  }
  return step;
}

// One lane: the `ahead`th row from the current one on goes into the entry.
DEV void add_row(const ThroughputCall& call, const Contribution& k, u32 channel, u32 ahead, PlanEntry& p) {
  const RowShape& shape = call.shape;
  if (k.own.payload == nullptr) {
    p.rows[p.num_rows++] = contribution_row(call, k, channel, ahead);
    return;
  }
  p.own_row = p.num_rows;
  p.own_weights = shape.has_weights ? k.own.weights + ahead * shape.topk : nullptr;
  p.rows[p.num_rows++] = k.own.payload + static_cast<u64>(ahead) * shape.payload_bytes;
}

// One lane: `rows` rows of a contribution, at least one, are in entries; the next one's token is `least` or more.
DEV void advance(const ThroughputCall& call, Contribution& k, u32 rows, u32 least) {
  k.least = least;
  k.ready = 0;
  k.remaining -= rows;
  if (k.own.payload != nullptr) {
    k.own.payload += static_cast<u64>(rows) * call.shape.payload_bytes;
    k.own.tokens += rows;
    if (call.shape.has_weights) k.own.weights += rows * call.shape.topk;
    return;
  }
  k.row += rows;
  for (; k.row >= call.geometry.rows_per_chunk; k.row -= call.geometry.rows_per_chunk) ++k.head;
  if (k.remaining != 0 || k.row == 0) return;
  ++k.head;  // the last chunk is not full
  k.row = 0;
}

// Lane 0: moves the rows of the smallest waiting token (or of `token`, when not kNoToken) into the entry. Returns which
// contributions had one.
DEV u64 take_token(const ThroughputCall& call, MergeShared& m, u32 channel, u32 token, PlanEntry& p) {
  if (token == kNoToken)
    for (u32 g = 0; g < m.num_from; ++g)
      if (m.from[g].remaining != 0 && m.from[g].token < token) token = m.from[g].token;
  p.token = token;
  u64 had = 0;
  for (u32 g = 0; g < m.num_from; ++g) {
    Contribution& k = m.from[g];
    if (k.remaining == 0 || k.token != token) continue;
    had |= 1ull << g;
    add_row(call, k, channel, 0, p);
    advance(call, k, 1, token + 1);
  }
  return had;
}

// The same warp, after the batch has been reduced: gives the chunks back.
DEV void release_contributions(MergeShared& m) {
  for (u32 g = simt::lane(); g < m.num_from; g += simt::kWarp) {
    Contribution& k = m.from[g];
    if (k.released == k.head) continue;
    simt::st_release_sys(k.stream.heads, k.head);  // pairs with the contributor's wait for a slot
    k.released = k.head;
  }
}

// Weights of a row in a ring.
DEV const float* weights_in(const RowShape& shape, const u8* row) {
  return reinterpret_cast<const float*>(row + shape.weights());
}

// One lane per k: fp32 sum over the node's rows of the weight of k, in their order.
DEV float sum_weights(const RowShape& shape, const PlanEntry& e, u32 k) {
  float sum = 0.0f;
  for (u32 i = 0; i < e.num_rows; ++i) sum += (i == e.own_row ? e.own_weights : weights_in(shape, e.rows[i]))[k];
  return sum;
}

// Where the node's ranks have rows that are in no ring (CombineArgs::arenas), and how long a row is.
struct Arenas {
  const u8* const* memories;
  u32 local_size, payload_bytes;
};

// The payload of a row in a ring; null: its header names no place.
DEV const u16* payload_of(const u8* row, const Arenas& in) {
  const u64 place = in.memories == nullptr ? 0 : reinterpret_cast<const RowHeader*>(row)->destinations;
  if (place == 0) return reinterpret_cast<const u16*>(row + sizeof(RowHeader));
  return row_in_memory(in.memories, in.local_size, RowPlace::local(place), RowPlace::offset(place), in.payload_bytes);
}

// One warp: the payloads as reduce_rows takes them. False: one of them is nowhere.
DEV bool payloads(const PlanEntry& e, const Arenas& in, const u16** out) {
  bool all = true;
  for (u32 i = simt::lane(); i < e.num_rows; i += simt::kWarp) {
    out[i] = i == e.own_row ? reinterpret_cast<const u16*>(e.rows[i]) : payload_of(e.rows[i], in);
    all = all && out[i] != nullptr;
  }
  simt::sync_warp();
  return in.memories == nullptr || simt::ballot(!all) == 0;
}

}  // namespace uccl
