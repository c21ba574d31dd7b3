// What the throughput kernels share: the call, and the addresses of streams (layout/throughput.h says what those are).
//
// A stream's writer may fill chunk n when n - head < slots; head is the slowest reader's. On a node, readers store
// their heads beside the ring. Over the network the landing rank of the ring sends the slowest head back as a credit.
// With `shrink` a rank that a wait expires for is masked: its streams, and this rank's to it, stop where they are and
// are never read again, which Python sees to (uccl_ep/low_latency/calls.py). Whom a token goes to stays as it was
// counted, so that others find the rows that were announced to them. No call waits for another call to end: chunk
// numbers go on, and only a change of geometry first drains the rings (settle.h).
#pragma once
#include "kernels/device/copy.h"
#include "kernels/device/ring_push.h"
#include "kernels/layout/access.h"
#include "kernels/layout/throughput.h"

namespace uccl {

// Which of a rank's calls have exchanged identities (identify.h); zeroed once.
struct IdentityState {
  u64 calls;  // launches that have ended
  u64 node;  // launches whose rows of this node may be read: its ranks were found to be in them
  u64 compared;  // the same for all ranks
  u32 ticket, unused;
};

struct ThroughputCall {
  ThroughputLayout layout;
  StreamGeometry geometry;
  RowShape shape;
  u32 num_local_experts;
  // Where the routing of this call is (from the counts kernel, or a handle). C = geometry.num_channels.
  const u8* is_token_in_rank;  // [num_tokens, N]; as it was when rows were counted, without ranks masked then
  const u32* node_rows;  // [cells, C] rows that this rank sends to each audience
  const u32* recv_tokens;  // [N, C] rows that this rank takes from each source
  const u32* recv_begin;  // [N, C] where they start in the output
  const u32* stream_rows;  // [N, C] rows of each source's stream to this rank's crowd
  const u32* reducer_tokens;  // [N, readers, C] rows per reader, for sources that this rank stands for
  const u32* number;  // [1] of the count exchange that the routing comes from
  IdentityState* identities;  // of this rank
  u32 num_tokens;
  u32 readers;  // stride of reducer_tokens: largest node
  u32 identify;  // 1: a call that has exchanged no counts just before
  u32 share_rows;  // 1: several warps work on a stream together (team.h)
};

// A ring as its reader sees it.
struct StreamAddress {
  const u8* unit;
  const u64* tail;
  u64* heads;  // one word a reader
};

// The dispatch stream of `source` to this rank's crowd (topology.h).
DEV StreamAddress dispatch_stream(const RankContext& c, const ThroughputLayout& layout, u32 source, u32 channel) {
  const TopologyView& t = c.topology;
  if (t.is_local(source)) {
    u8* base = data_of(c, source);
    return StreamAddress{base + layout.own_stream(),
                         word(base, c.signals.stream_tail(Direction::kDispatch, source, channel)),
                         word(base, c.signals.stream_head(Direction::kDispatch, source, channel, 0))};
  }
  const u32 landing = t.landing_rank(source, t.cell);
  u8* base = data_of(c, landing);
  return StreamAddress{base + layout.dispatch_hosted(t.landing_slot(source, t.cell)),
                       word(control_of(c, landing), c.control_layout.tail(Direction::kDispatch, source, channel)),
                       word(base, c.signals.stream_head(Direction::kDispatch, source, channel, 0))};
}

// The combine rows that local rank `contributor` has for `source`.
DEV StreamAddress contribution_stream(const RankContext& c, const ThroughputLayout& layout, u32 contributor, u32 source,
                                      u32 channel) {
  u8* base = data_of(c, contributor);
  return StreamAddress{base + layout.contributions(source),
                       word(base, c.signals.stream_tail(Direction::kCombine, source, channel)),
                       word(base, c.signals.stream_head(Direction::kCombine, source, channel, 0))};
}

// The partial sums that a cell of another node sends this rank.
DEV StreamAddress partial_stream(const RankContext& c, const ThroughputLayout& layout, u32 cell, u32 channel) {
  const u32 reducer = c.topology.landing_rank(c.topology.rank, cell);
  return StreamAddress{own_data(c) + layout.partial(cell),
                       word(own_control(c), c.control_layout.tail(Direction::kCombine, reducer, channel)),
                       word(own_data(c), c.signals.partial_head(reducer, channel))};
}

// The head of the slowest reader of a stream of `source` here, masked ones left out; `*who` is whom a wait for it waits
// for. A reader that claims what was never written has read nothing, as far as one can tell.
DEV u64 slowest_head(const RankContext& c, u32 source, const StreamAddress& s, u32* who) {
  const u64 tail = simt::ld_relaxed_sys(s.tail);
  u64 slowest = ~0ull;
  for (u32 g = 0; g < c.topology.crowd_size(source); ++g) {
    const u32 reader = c.topology.crowd_member(source, g);
    if (c.shrink && masked(c, reader)) continue;
    u64 head = simt::ld_acquire_sys(&s.heads[g]);  // pairs with the reader's release after its last read
    if (head > tail) head = 0;
    if (head >= slowest) continue;
    slowest = head;
    *who = reader;
  }
  return slowest;
}

// Head of an outgoing stream to another node: the credit that its landing rank sent back.
DEV u64 credit_of(const RankContext& c, Direction d, u32 peer, u32 channel) {
  return simt::ld_acquire_sys(word(own_control(c), c.control_layout.credit(d, peer, channel)));
}

// Head of this rank's own dispatch stream to one audience; `*peer` is the rank that it comes from.
DEV u64 dispatch_head(const RankContext& c, u32 cell, u32 channel, u32* peer) {
  const TopologyView& t = c.topology;
  if (cell != t.cell) {
    *peer = t.landing_rank(t.rank, cell);
    return credit_of(c, Direction::kDispatch, *peer, channel);
  }
  u8* const base = own_data(c);
  const StreamAddress own{nullptr, word(base, c.signals.stream_tail(Direction::kDispatch, t.rank, channel)),
                          word(base, c.signals.stream_head(Direction::kDispatch, t.rank, channel, 0))};
  return slowest_head(c, t.rank, own, peer);
}

// The rank that a wait for a reader of `source`'s rows on this node names: the source's landing rank here. With a cell a
// rank that is this rank itself, which stops reading only when the source is masked; then the source is named.
DEV u32 combine_peer(const RankContext& c, u32 source) {
  return c.shrink ? source : c.topology.landing_rank(source, c.topology.cell);
}

// One lane: waits until `head()` lets chunk number `site.expected` be written. head() may name another rank in
// site.peer. `*absent` says that this rank is masked, so that the chunk will never be read.
template <class Head>
DEV bool wait_for_slot(const RankContext& c, const WaitContext& wait, const WaitSite& site, const StreamGeometry& g,
                       Head head, bool* absent) {
  return wait_or_mask(c, wait, site, head, [&](u64 seen) { return site.expected - seen < g.num_slots; }, absent);
}

// One lane: a reader at `head` has found a tail that lets it read on. A correct writer is never more than a ring ahead.
DEV bool tail_fits(const WaitContext& wait, WaitSite site, const StreamGeometry& g, u64 head, u64 tail) {
  site.expected = head + g.num_slots;
  return tail - head <= g.num_slots || bad_arrival(wait, site, tail);
}

// One lane: a chunk to another node; it has the same place in the ring at both ends.
struct OutgoingChunk {
  Direction direction;
  u32 peer, channel;
  u64 number, local_unit, remote_unit, bytes;
};
DEV bool send_chunk(const RankContext& c, const WaitContext& wait, const OutgoingChunk& chunk,
                    const StreamGeometry& g) {
  Command m;
  m.op = Op::kSequence;
  m.peer = chunk.peer;
  m.key = stream_key(chunk.direction, chunk.channel, chunk.number);
  m.local_offset = chunk.local_unit + g.chunk(chunk.channel, chunk.number);
  m.remote_offset = chunk.remote_unit + g.chunk(chunk.channel, chunk.number);
  m.bytes = chunk.bytes;
  return push(ring_of_channel(c, chunk.channel), m, wait) != kNoTicket;
}
// One lane: tells the writer of a stream that this node has finished with its chunks below `head`.
DEV bool send_credit(const RankContext& c, const WaitContext& wait, Direction d, u32 peer, u32 channel, u64 head) {
  Command m;
  m.op = Op::kCredit;
  m.peer = peer;
  m.key = stream_key(d, channel, head);
  return push(ring_of_channel(c, channel), m, wait) != kNoTicket;
}

// Rows of a stream's next chunk, when `left` are still to come.
DEV u32 rows_in_chunk(const StreamGeometry& g, u32 left) { return left < g.rows_per_chunk ? left : g.rows_per_chunk; }

// The tokens of one channel: contiguous, in equal shares.
DEV u32 channel_begin(u32 tokens, u32 channels, u32 channel) {
  const u32 share = static_cast<u32>(ceil_div(tokens, channels));
  const u64 begin = static_cast<u64>(share) * channel;
  return begin < tokens ? static_cast<u32>(begin) : tokens;
}

// Ranks of an audience (by place) that take a token.
DEV u64 destinations(const RankContext& c, const u8* is_token_in_rank, u32 token, u32 cell) {
  const u8* row = is_token_in_rank + static_cast<u64>(token) * c.topology.num_ranks;
  u64 mask = 0;
  for (u32 i = 0; i < c.topology.audience_size(cell); ++i)
    if (row[c.topology.audience_member(cell, i)]) mask |= 1ull << i;
  return mask;
}

}  // namespace uccl
