// Before a dispatch: every source tells every node how many rows to expect, per channel and reader, and how many
// selections each expert gets; every rank then knows its output's size and where each source's rows go. One block.
#pragma once
#include "kernels/throughput/common.h"

namespace uccl {

struct CountsArgs {
  RankContext rank;
  ThroughputLayout layout;
  RowShape shape;
  u64 epoch;
  const u8* is_token_in_rank;        // [num_tokens, N]
  const i32* num_tokens_per_expert;  // [E] selections of this rank's tokens
  u32 num_tokens, num_channels, num_local_experts, expert_alignment;
  u32 readers;                       // largest node
  u32 unused;
  u32* channel_prefix;   // [N, C] inclusive, this rank's tokens to each rank
  u32* node_rows;        // [nodes, C]
  u32* recv_tokens;      // [N, C]
  u32* recv_begin;       // [N, C]
  u32* stream_rows;      // [N, C]
  u32* reducer_tokens;   // [N, readers, C]
  u32* rank_prefix;      // [N, N] of a single node ([i][r]: tokens of ranks 0..i to r), else [N] of this rank
  u32* expert_counts;    // [L] rounded up to expert_alignment
  u32* recv_total;       // [1]
};
struct CountsShared {
  u32 failed;
};

// The words behind a CountsHeader.
struct CountsBlock {
  u32* rows;     // [C]
  u32* tokens;   // [readers of that node, C]
  u32* experts;  // [readers of that node, L]
};
DEV CountsBlock counts_block(CountsHeader* h, u32 channels, u32 readers) {
  u32* words = reinterpret_cast<u32*>(h + 1);
  return CountsBlock{words, words + channels, words + channels + readers * channels};
}

// A warp counts one channel for one node and fills that part of the node's block.
DEV void count_channel(const CountsArgs& a, u32 node, u32 channel, const CountsBlock& block) {
  const u32 begin = channel_begin(a.num_tokens, a.num_channels, channel);
  const u32 end = channel_begin(a.num_tokens, a.num_channels, channel + 1);
  const u32 size = a.rank.topology.size_of(node);
  for (u32 i = simt::lane(); i <= size; i += simt::kWarp) {  // lane `size` counts rows, the others one reader each
    u32 n = 0;
    for (u32 t = begin; t < end; ++t) {
      const u8* row = a.is_token_in_rank + static_cast<u64>(t) * a.rank.topology.num_ranks;
      if (i < size)
        n += row[a.rank.topology.member(node, i)] != 0;
      else
        n += destinations(a.rank, a.is_token_in_rank, t, node) != 0;
    }
    if (i < size)
      block.tokens[i * a.num_channels + channel] = n;
    else
      block.rows[channel] = a.node_rows[node * a.num_channels + channel] = n;
  }
}

// The whole block fills the outgoing counts of every node.
DEV void fill_counts(const CountsArgs& a) {
  const TopologyView& topology = a.rank.topology;
  for (u32 u = simt::warp(); u < topology.num_nodes * a.num_channels; u += simt::num_warps()) {
    const u32 node = u / a.num_channels;
    CountsHeader* h = reinterpret_cast<CountsHeader*>(own_data(a.rank) + a.layout.own_counts(a.epoch, node));
    count_channel(a, node, u % a.num_channels, counts_block(h, a.num_channels, topology.size_of(node)));
  }
  for (u32 node = 0; node < topology.num_nodes; ++node) {
    CountsHeader* h = reinterpret_cast<CountsHeader*>(own_data(a.rank) + a.layout.own_counts(a.epoch, node));
    const u32 size = topology.size_of(node);
    if (simt::tid() == 0)
      *h = CountsHeader{a.num_channels,  a.num_local_experts,   size,
                        a.shape.topk,    a.shape.payload_bytes, a.shape.scale_bytes,
                        a.shape.has_ids, a.shape.has_weights};
    const CountsBlock block = counts_block(h, a.num_channels, size);
    for (u32 i = simt::tid(); i < size * a.num_local_experts; i += simt::ntid())
      block.experts[i] = static_cast<u32>(
          a.num_tokens_per_expert[topology.member(node, i / a.num_local_experts) * a.num_local_experts +
                                  i % a.num_local_experts]);
  }
  simt::sync_block();
  for (u32 r = simt::tid(); r < topology.num_ranks; r += simt::ntid()) {  // what the handle calls channel_prefix_matrix
    const u32 node = topology.node_of[r], i = topology.local_of[r];
    CountsHeader* h = reinterpret_cast<CountsHeader*>(own_data(a.rank) + a.layout.own_counts(a.epoch, node));
    const CountsBlock block = counts_block(h, a.num_channels, topology.size_of(node));
    u32 sum = 0;
    for (u32 c = 0; c < a.num_channels; ++c)
      a.channel_prefix[r * a.num_channels + c] = sum += block.tokens[i * a.num_channels + c];
  }
}

// Sends each remote node its counts and raises the flag for this one.
DEV void send_counts(const CountsArgs& a, const WaitContext& wait) {
  const TopologyView& topology = a.rank.topology;
  // One lane of each warp: pushing lanes of one warp could wait for each other where lanes run in lockstep.
  for (u32 n = simt::warp(); simt::lane() == 0 && n < topology.num_nodes; n += simt::num_warps()) {
    if (n == topology.node) continue;
    const u32 host = topology.host_of(topology.rank, n), size = topology.size_of(n);
    Command m;
    m.op = Op::kWrite;
    m.peer = host;
    m.key = epoch_key(Phase::kCounts, a.epoch);
    m.local_offset = a.layout.own_counts(a.epoch, n);
    m.remote_offset = a.layout.hosted_counts(a.epoch, topology.hosted_slot(topology.rank, n));
    m.bytes = align_up(sizeof(CountsHeader) + 4ull * (a.num_channels * (1 + size) + size * a.num_local_experts), 16);
    if (push(ring_to(a.rank, host), m, wait) == kNoTicket) break;
    const u64 header = a.layout.counts_expect(a.epoch, n);
    *reinterpret_cast<ExpectHeader*>(own_data(a.rank) + header) = ExpectHeader{a.epoch, 1, 0, 0};
    m.op = Op::kCount;
    m.local_offset = header;
    m.remote_offset = a.rank.control_offset + a.rank.control_layout.expect(Phase::kCounts, a.epoch, topology.rank);
    m.bytes = sizeof(ExpectHeader);
    push(ring_to(a.rank, host), m, wait);
  }
  if (simt::tid() == 0)  // after sync_block: covers the whole block's stores
    simt::st_release_sys(word(own_data(a.rank), a.rank.signals.flag(Phase::kCounts, topology.rank)), a.epoch);
}

DEV const CountsHeader* counts_of(const CountsArgs& a, u32 source) {
  const TopologyView& t = a.rank.topology;
  const u8* base = t.is_local(source) ? data_of(a.rank, source) + a.layout.own_counts(a.epoch, t.node)
                                      : data_of(a.rank, t.host_of(source, t.node)) +
                                            a.layout.hosted_counts(a.epoch, t.hosted_slot(source, t.node));
  return reinterpret_cast<const CountsHeader*>(base);
}

// One lane: a source's counts are here and speak of the same call.
DEV bool await_counts(const CountsArgs& a, const WaitContext& wait, u32 source) {
  const u64* flag = arrival_flag(a.rank, Phase::kCounts, source);
  const u64 begin = simt::now_ns();
  const WaitSite site{WaitPhase::kCounts, source, kNoChannel, a.epoch};
  if (!wait_until(wait, site, [&] { return simt::ld_acquire_sys(flag); }, [&](u64 v) { return v >= a.epoch; }))
    return false;
  add_stat(a.rank, source, PeerStat::kWaitNs, simt::now_ns() - begin);
  const CountsHeader& h = *counts_of(a, source);
  const u32 theirs[] = {h.num_channels, h.num_local_experts, h.topk,       h.payload_bytes,
                        h.scale_bytes,  h.has_ids,           h.has_weights};
  const u32 mine[] = {a.num_channels,      a.num_local_experts, a.shape.topk,       a.shape.payload_bytes,
                      a.shape.scale_bytes, a.shape.has_ids,     a.shape.has_weights};
  for (u32 i = 0; i < 7; ++i)
    if (theirs[i] != mine[i]) {
      // `channel` says which of the seven; Buffer turns it into words.
      record_fault(wait, WaitSite{WaitPhase::kCounts, source, i, mine[i]}, FaultKind::kMismatch, theirs[i]);
      return false;
    }
  return true;
}

// One lane per source: its part of the tables.
DEV void read_counts(const CountsArgs& a, u32 source) {
  const TopologyView& topology = a.rank.topology;
  const u32 size = topology.local_size, channels = a.num_channels;
  CountsHeader* h = const_cast<CountsHeader*>(counts_of(a, source));
  const CountsBlock block = counts_block(h, channels, size);
  const bool reducing = topology.host_of(source, topology.node) == topology.rank;
  for (u32 c = 0; c < channels; ++c) {
    a.stream_rows[source * channels + c] = block.rows[c];
    a.recv_tokens[source * channels + c] = block.tokens[topology.local * channels + c];
    for (u32 g = 0; g < a.readers; ++g)
      a.reducer_tokens[(static_cast<u64>(source) * a.readers + g) * channels + c] =
          reducing && g < size ? block.tokens[g * channels + c] : 0;
  }
  if (topology.num_nodes == 1)
    for (u32 r = 0; r < size; ++r) {
      u32 sum = 0;
      for (u32 c = 0; c < channels; ++c) sum += block.tokens[r * channels + c];
      a.rank_prefix[source * topology.num_ranks + r] = sum;  // summed over sources below
    }
}

// The whole block: sums over sources.
DEV void sum_counts(const CountsArgs& a) {
  const TopologyView& topology = a.rank.topology;
  const u32 channels = a.num_channels;
  if (simt::tid() == 0) {
    u32 sum = 0;
    for (u32 s = 0; s < topology.num_ranks; ++s) {
      for (u32 c = 0; c < channels; ++c) {
        a.recv_begin[s * channels + c] = sum;
        sum += a.recv_tokens[s * channels + c];
      }
      if (topology.num_nodes > 1) a.rank_prefix[s] = sum;
    }
    *a.recv_total = sum;
  }
  if (topology.num_nodes == 1)
    for (u32 r = simt::tid(); r < topology.num_ranks; r += simt::ntid())
      for (u32 s = 1; s < topology.num_ranks; ++s)
        a.rank_prefix[s * topology.num_ranks + r] += a.rank_prefix[(s - 1) * topology.num_ranks + r];
  for (u32 e = simt::tid(); e < a.num_local_experts; e += simt::ntid()) {
    u32 sum = 0;
    for (u32 s = 0; s < topology.num_ranks; ++s) {
      CountsHeader* h = const_cast<CountsHeader*>(counts_of(a, s));
      sum += counts_block(h, channels, topology.local_size).experts[topology.local * a.num_local_experts + e];
    }
    a.expert_counts[e] = static_cast<u32>(align_up(sum, a.expert_alignment));
  }
}

KERNEL throughput_counts(CountsArgs a) {
  CountsShared& shared = simt::smem<CountsShared>();
  const WaitContext wait = wait_context(a.rank);
  if (simt::tid() == 0) simt::st_release_gpu(&shared.failed, 0u);
  fill_counts(a);
  simt::sync_block();
  send_counts(a, wait);
  for (u32 s = simt::tid(); s < a.rank.topology.num_ranks; s += simt::ntid())
    if (await_counts(a, wait, s))
      read_counts(a, s);
    else
      simt::st_release_gpu(&shared.failed, 1u);
  simt::sync_block();
  if (simt::ld_acquire_gpu(&shared.failed) == 0) sum_counts(a);
}

}  // namespace uccl
