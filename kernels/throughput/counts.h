// Before a dispatch: every source tells every audience (topology.h) how many rows to expect, per channel and reader,
// and how many selections each expert gets; every rank then knows its output's size and where each source's rows go.
// One block.
#pragma once
#include "kernels/throughput/check.h"
#include "kernels/throughput/common.h"

namespace uccl {

struct CountsArgs {
  RankContext rank;
  ThroughputLayout layout;
  RowShape shape;
  u64* epoch;                        // count exchanges so far; this kernel counts on, so that it can be recorded
  const u8* is_token_in_rank;        // [num_tokens, N]
  const i32* num_tokens_per_expert;  // [E] selections of this rank's tokens
  const i64* topk_idx;               // [num_tokens, topk] or null, for check.h alone, as the next two
  const i32* num_tokens_per_rank;    // [N]
  const i32* num_tokens_per_node;    // [nodes] or null
  LayoutRefusal* refusal;            // in host memory; null: the host does not wait for this kernel
  LayoutFindings* findings;          // LayoutFindings::words()
  u32 num_tokens, num_channels, num_local_experts, expert_alignment;
  u32 readers;                       // largest node
  u32 unused;
  u8* taken;             // [num_tokens, N] is_token_in_rank without ranks that are masked, or null: nobody can be
  u32* channel_prefix;   // [N, C] inclusive, this rank's tokens to each rank
  u32* node_rows;        // [cells, C] by audience (topology.h)
  u32* recv_tokens;      // [N, C]
  u32* recv_begin;       // [N, C]
  u32* stream_rows;      // [N, C]
  u32* reducer_tokens;   // [N, readers, C]
  u32* rank_prefix;      // [N, N] of a single node ([i][r]: tokens of ranks 0..i to r), else [N] of this rank
  u32* expert_counts;    // [L] rounded up to expert_alignment
  u32* recv_total;       // [1]
  u32* number;  // [1] of this exchange: what the calls that its routing answers or repeats show to other ranks
};
struct CountsShared {
  u32 failed;
  u8 left_out[kMaxRanks];  // sources that are masked or absent
};

// Whom tokens go to in this call: what is masked now is left out for as long as the routing lives.
DEV const u8* tokens_in_ranks(const CountsArgs& a) { return a.taken != nullptr ? a.taken : a.is_token_in_rank; }
DEV LayoutCheck layout_check(const CountsArgs& a) {
  return LayoutCheck{&a.rank,
                     a.findings,
                     a.topk_idx,
                     a.is_token_in_rank,
                     a.num_tokens_per_rank,
                     a.num_tokens_per_node,
                     a.num_tokens_per_expert,
                     a.channel_prefix,
                     a.node_rows,
                     a.num_tokens,
                     a.shape.topk,
                     a.num_local_experts,
                     a.num_channels};
}
// The whole block.
DEV void leave_out_masked(const CountsArgs& a) {
  const u64 ranks = a.rank.topology.num_ranks;
  for (u64 i = simt::tid(); a.taken != nullptr && i < a.num_tokens * ranks; i += simt::ntid())
    a.taken[i] = a.is_token_in_rank[i] != 0 && !masked(a.rank, static_cast<u32>(i % ranks));
}

// The words behind a CountsHeader.
struct CountsBlock {
  u32* rows;  // [C]
  u32* tokens;  // [readers, C]
  u32* experts;  // [readers, L]
};
DEV CountsBlock counts_block(CountsHeader* h, u32 channels, u32 readers) {
  u32* words = reinterpret_cast<u32*>(h + 1);
  return CountsBlock{words, words + channels, words + channels + readers * channels};
}

// A warp counts one channel for one audience, a lane a token, and fills that part of its block.
DEV void count_channel(const CountsArgs& a, u64 epoch, u32 cell, u32 channel, const CountsBlock& block) {
  constexpr u32 kParts = static_cast<u32>(ceil_div(kMaxRanksPerNode, simt::kWarp));
  const u32 end = channel_begin(a.num_tokens, a.num_channels, channel + 1);
  const u32 size = a.rank.topology.audience_size(cell);
  u32 rows = 0, counted[kParts] = {};  // of reader part * kWarp + lane
  for (u32 base = channel_begin(a.num_tokens, a.num_channels, channel); base < end; base += simt::kWarp) {
    const u32 token = base + simt::lane();
    const u64 takers = token < end ? destinations(a.rank, tokens_in_ranks(a), token, cell) : 0;
    rows += simt::popcount(simt::ballot(takers != 0));
    if constexpr (simt::kWarp == 1) {  // no lanes to ask
      for (u32 i = 0; i < size; ++i) counted[i] += takers >> i & 1;
      continue;
    }
    UCCL_UNROLL
    for (u32 part = 0; part < kParts; ++part)
      for (u32 i = part * simt::kWarp; i < size && i < (part + 1) * simt::kWarp; ++i) {
        const u32 n = simt::popcount(simt::ballot(takers >> i & 1));
        if (simt::lane() == i - part * simt::kWarp) counted[part] += n;
      }
  }
  UCCL_UNROLL
  for (u32 part = 0; part < kParts; ++part) {
    const u32 reader = part * simt::kWarp + simt::lane();
    if (reader < size) block.tokens[reader * a.num_channels + channel] = CountWord::seal(counted[part], epoch);
  }
  if (simt::lane() != 0) return;
  block.rows[channel] = CountWord::seal(rows, epoch);
  a.node_rows[cell * a.num_channels + channel] = rows;
}

// One warp: out(i, sum of value(0) to value(i)), a lane an i; returns the whole sum.
template <class Value, class Out>
DEV u32 running_sum(u32 count, Value value, Out out) {
  u32 sum = 0;
  for (u32 base = 0; base < count; base += simt::kWarp) {
    const u32 i = base + simt::lane();
    const u32 up_to = sum + simt::sum_up_to(i < count ? value(i) : 0);
    if (i < count) out(i, up_to);
    sum = simt::shfl(up_to, simt::kWarp - 1);
  }
  return sum;
}

// The whole block fills the outgoing counts of every audience.
DEV void fill_counts(const CountsArgs& a, u64 epoch) {
  const TopologyView& topology = a.rank.topology;
  for (u32 u = simt::warp(); u < topology.num_cells * a.num_channels; u += simt::num_warps()) {
    const u32 cell = u / a.num_channels, channel = u % a.num_channels;
    if (!topology.is_audience(cell)) {
      if (simt::lane() == 0) a.node_rows[cell * a.num_channels + channel] = 0;
      continue;
    }
    CountsHeader* h = reinterpret_cast<CountsHeader*>(own_data(a.rank) + a.layout.own_counts(epoch, cell));
    count_channel(a, epoch, cell, channel, counts_block(h, a.num_channels, topology.audience_size(cell)));
  }
  for (u32 cell = 0; cell < topology.num_cells; ++cell) {
    if (!topology.is_audience(cell)) continue;
    CountsHeader* h = reinterpret_cast<CountsHeader*>(own_data(a.rank) + a.layout.own_counts(epoch, cell));
    const u32 size = topology.audience_size(cell);
    if (simt::tid() == 0)
      *h = CountsHeader{a.num_channels,
                        a.num_local_experts,
                        size,
                        a.shape.topk,
                        a.shape.payload_bytes,
                        a.shape.scale_bytes,
                        a.shape.has_ids,
                        a.shape.has_weights,
                        epoch,
                        a.shape.dtype,
                        a.rank.tag};
    const CountsBlock block = counts_block(h, a.num_channels, size);
    for (u32 i = simt::tid(); i < size * a.num_local_experts; i += simt::ntid()) {
      const u32 reader = topology.audience_member(cell, i / a.num_local_experts);
      const u32 expert = reader * a.num_local_experts + i % a.num_local_experts;
      block.experts[i] = CountWord::seal(static_cast<u32>(a.num_tokens_per_expert[expert]), epoch);
    }
  }
  simt::sync_block();
  for (u32 r = simt::warp(); r < topology.num_ranks; r += simt::num_warps()) {  // the handle's channel_prefix_matrix
    u32* const prefix = &a.channel_prefix[r * a.num_channels];
    if (topology.is_absent(r)) {
      for (u32 c = simt::lane(); c < a.num_channels; c += simt::kWarp) prefix[c] = 0;
      continue;
    }
    const u32 cell = topology.audience_of(r), i = topology.place_in_audience(r);
    CountsHeader* h = reinterpret_cast<CountsHeader*>(own_data(a.rank) + a.layout.own_counts(epoch, cell));
    const CountsBlock block = counts_block(h, a.num_channels, topology.audience_size(cell));
    running_sum(
        a.num_channels, [&](u32 c) { return CountWord::open(block.tokens[i * a.num_channels + c], epoch); },
        [&](u32 c, u32 up_to) { prefix[c] = up_to; });
  }
}

// One thread: tells every audience that there will be no rows, and why.
DEV void fill_refusal(const CountsArgs& a, u64 epoch, LayoutPart part) {
  for (u32 cell = 0; cell < a.rank.topology.num_cells; ++cell) {
    if (!a.rank.topology.is_audience(cell)) continue;
    CountsHeader* h = reinterpret_cast<CountsHeader*>(own_data(a.rank) + a.layout.own_counts(epoch, cell));
    h->num_channels = kRefusedCall;
    h->num_local_experts = static_cast<u32>(part);
  }
}

// Sends each cell of other nodes its counts and raises the flag for this node.
DEV void send_counts(const CountsArgs& a, const WaitContext& wait, u64 epoch) {
  const TopologyView& topology = a.rank.topology;
  // One lane of each warp: pushing lanes of one warp could wait for each other where lanes run in lockstep.
  for (u32 n = simt::warp(); simt::lane() == 0 && n < topology.num_cells; n += simt::num_warps()) {
    if (!topology.is_remote(n)) continue;
    const u32 landing = topology.landing_rank(topology.rank, n), size = topology.size_of(n);
    if (a.rank.shrink && masked(a.rank, landing)) continue;
    Command m;
    m.op = Op::kWrite;
    m.peer = landing;
    m.key = epoch_key(Phase::kCounts, epoch);
    m.local_offset = a.layout.own_counts(epoch, n);
    m.remote_offset = a.layout.landing_counts(epoch, topology.landing_slot(topology.rank, n));
    m.bytes = CountsHeader::bytes(a.num_channels, size, a.num_local_experts);
    if (push(ring_to(a.rank, landing), m, wait) == kNoTicket) break;
    const u64 header = a.layout.counts_expect(epoch, n);
    *reinterpret_cast<ExpectHeader*>(own_data(a.rank) + header) = ExpectHeader::make(epoch, 1, 0, 0);
    m.op = Op::kCount;
    m.local_offset = header;
    m.remote_offset = a.rank.control_offset + a.rank.control_layout.expect(Phase::kCounts, epoch, topology.rank);
    m.bytes = sizeof(ExpectHeader);
    push(ring_to(a.rank, landing), m, wait);
  }
  if (simt::tid() == 0)  // after sync_block: covers the whole block's stores
    simt::st_release_sys(word(own_data(a.rank), a.rank.signals.flag(Phase::kCounts, topology.rank)), epoch);
}

DEV const CountsHeader* counts_of(const CountsArgs& a, u64 epoch, u32 source) {
  const TopologyView& t = a.rank.topology;
  const u8* base = t.is_local(source) ? data_of(a.rank, source) + a.layout.own_counts(epoch, t.cell_of[source])
                                      : data_of(a.rank, t.landing_rank(source, t.cell)) +
                                            a.layout.landing_counts(epoch, t.landing_slot(source, t.cell));
  return reinterpret_cast<const CountsHeader*>(base);
}

// One lane: a source's counts are here and speak of the same call, or it is `*absent`.
DEV bool await_counts(const CountsArgs& a, const WaitContext& wait, u64 epoch, u32 source, bool* absent) {
  *absent = a.rank.topology.is_absent(source);
  if (*absent) return true;
  const u64* flag = arrival_flag(a.rank, Phase::kCounts, source);
  const u64 begin = simt::now_ns();
  const WaitSite site{WaitPhase::kCounts, source, {}, epoch};
  if (!wait_or_mask(a.rank, wait, site, SystemWord{flag}, [&](u64 v) { return v >= epoch; }, absent)) return false;
  if (*absent) return true;
  add_stat(a.rank, source, PeerStat::kWaitNs, simt::now_ns() - begin);
  const CountsHeader& h = *counts_of(a, epoch, source);
  if (h.epoch != epoch) {
    record_fault(wait, WaitSite{WaitPhase::kCounts, source, {}, epoch}, FaultKind::kBadArrival, h.epoch);
    return false;
  }
  if (h.num_channels == kRefusedCall) {
    *absent = true;  // it sends nothing in this call
    const u32 part = h.num_local_experts != 0 ? h.num_local_experts : ~0u;  // whatever stands there, it is a refusal
    return tell_refusal(wait, a.findings, a.refusal, LayoutRefusal{part, source, 0, 0, 0});
  }
  const auto alike = [&](MismatchField what, u32 mine, u32 theirs) {
    if (mine == theirs) return true;
    const WaitSite site{WaitPhase::kCounts, source, what, mine};
    record_fault(wait, site, FaultKind::kMismatch, theirs);
    return false;
  };
  return alike(MismatchField::kTag, a.rank.tag, h.tag) && alike(MismatchField::kDtype, a.shape.dtype, h.dtype) &&
         alike(MismatchField::kRowBytes, a.shape.payload_bytes, h.payload_bytes) &&
         alike(MismatchField::kScaleBytes, a.shape.scale_bytes, h.scale_bytes) &&
         alike(MismatchField::kExperts, a.num_local_experts, h.num_local_experts) &&
         alike(MismatchField::kTopk, a.shape.topk, h.topk) &&
         alike(MismatchField::kHasIds, a.shape.has_ids, h.has_ids) &&
         alike(MismatchField::kHasWeights, a.shape.has_weights, h.has_weights) &&
         alike(MismatchField::kChannels, a.num_channels, h.num_channels);
}

// One lane: a count of a source's, at most `most`; else kNoCount, and the call has failed.
DEV u32 take_count(const WaitContext& wait, u64 epoch, u32 source, u32 word, u32 most) {
  const u32 n = CountWord::open(word, epoch);
  if (n <= most) return n;
  bad_arrival(wait, WaitSite{WaitPhase::kCounts, source, {}, most}, word);
  return CountWord::kNoCount;
}

// One warp, a lane a channel: what a source has for its reader number `g` here, in this rank's tables; nothing if it is
// left out. False in lanes that found what cannot be.
DEV bool read_counts(const CountsArgs& a, const WaitContext& wait, u64 epoch, u32 source, u32 g, bool left_out) {
  const TopologyView& topology = a.rank.topology;
  const u32 channels = a.num_channels, most = channel_begin(kMaxTokensPerRank, channels, 1);
  const u32 size = left_out ? 0 : topology.crowd_size(source);
  CountsHeader* h = left_out ? nullptr : const_cast<CountsHeader*>(counts_of(a, epoch, source));
  const CountsBlock block = counts_block(h, channels, size);
  const u32 place = left_out ? 0 : topology.place_in_crowd(source);
  const bool reducing = !left_out && topology.landing_rank(source, topology.cell) == topology.rank;
  const bool read = g < size && (reducing || g == place || topology.num_nodes == 1);
  bool good = true;
  u32 sum = 0;
  for (u32 c = simt::lane(); c < channels; c += simt::kWarp) {
    const u32 rows = left_out ? 0 : take_count(wait, epoch, source, block.rows[c], most);
    const u32 tokens =
        read && rows != CountWord::kNoCount ? take_count(wait, epoch, source, block.tokens[g * channels + c], rows) : 0;
    good = good && rows != CountWord::kNoCount && tokens != CountWord::kNoCount;
    if (g == 0) a.stream_rows[source * channels + c] = rows;
    if (g == place) a.recv_tokens[source * channels + c] = tokens;
    a.reducer_tokens[(static_cast<u64>(source) * a.readers + g) * channels + c] = reducing ? tokens : 0;
    sum += tokens;
  }
  if (topology.num_nodes == 1) {  // summed over sources below
    sum = simt::warp_sum(sum);
    u32* const prefix = &a.rank_prefix[source * topology.num_ranks];
    if (simt::lane() == 0 && g < topology.local_size) prefix[topology.mates[g]] = sum;
    for (u32 r = simt::lane(); g == 0 && r < topology.num_ranks; r += simt::kWarp)
      if (topology.is_absent(r)) prefix[r] = 0;
  }
  return good;
}

// The whole block: sums over sources. False in threads that found what cannot be.
DEV bool sum_counts(const CountsArgs& a, const WaitContext& wait, const CountsShared& shared, u64 epoch) {
  bool good = true;
  const TopologyView& topology = a.rank.topology;
  const u32 channels = a.num_channels, ranks = topology.num_ranks;
  if (simt::warp() == 0) {
    const u32 sum = running_sum(
        ranks * channels, [&](u32 i) { return a.recv_tokens[i]; },
        [&](u32 i, u32 up_to) {
          a.recv_begin[i] = up_to - a.recv_tokens[i];
          if (topology.num_nodes > 1 && i % channels == channels - 1) a.rank_prefix[i / channels] = up_to;
        });
    if (simt::lane() == 0) *a.recv_total = sum;
  }
  for (u32 r = simt::warp(); topology.num_nodes == 1 && r < ranks; r += simt::num_warps())
    running_sum(
        ranks, [&](u32 s) { return a.rank_prefix[s * ranks + r]; },
        [&](u32 s, u32 up_to) { a.rank_prefix[s * ranks + r] = up_to; });
  for (u32 e = simt::warp(); e < a.num_local_experts; e += simt::num_warps()) {  // a lane a source
    u32 sum = 0;
    for (u32 s = simt::lane(); s < ranks; s += simt::kWarp) {
      if (shared.left_out[s]) continue;
      CountsHeader* h = const_cast<CountsHeader*>(counts_of(a, epoch, s));
      const CountsBlock block = counts_block(h, channels, topology.crowd_size(s));
      const u32 word = block.experts[topology.place_in_crowd(s) * a.num_local_experts + e];
      const u32 n = take_count(wait, epoch, s, word, CountWord::kMost);
      good = good && n != CountWord::kNoCount;
      sum += n;
    }
    sum = simt::warp_sum(sum);
    if (simt::lane() == 0) a.expert_counts[e] = static_cast<u32>(align_up(sum, a.expert_alignment));
  }
  return good;
}

KERNEL KERNEL_BOUNDS(kMaxBlockLanes) throughput_counts(CountsArgs a) {
  CountsShared& shared = simt::smem<CountsShared>();
  const WaitContext wait = wait_context(a.rank);
  const u64 epoch = *a.epoch + 1;
  if (simt::tid() == 0) simt::st_release_cta(&shared.failed, 0u);
  leave_out_masked(a);
  const LayoutCheck check = layout_check(a);
  begin_check(check);
  if (a.refusal != nullptr && simt::tid() == 0) a.refusal->part = 0;
  simt::sync_block();
  check_tokens(check);
  fill_counts(a, epoch);
  const LayoutPart wrong = finish_check(check);
  if (wrong != LayoutPart::kNone && simt::tid() == 0) fill_refusal(a, epoch, wrong);
  simt::sync_block();  // what is sent is there
  send_counts(a, wait, epoch);
  if (wrong != LayoutPart::kNone) {
    simt::sync_block();  // what is still to be pushed would end with the fault
    if (!simt::sync_block_and(simt::tid() != 0 || tell_refusal(wait, a.findings, a.refusal, a.findings->first))) return;
  }
  for (u32 s = simt::tid(); s < a.rank.topology.num_ranks; s += simt::ntid()) {
    bool absent = false;
    if (!await_counts(a, wait, epoch, s, &absent)) simt::st_release_cta(&shared.failed, 1u);
    shared.left_out[s] = absent;
  }
  simt::sync_block();
  if (simt::ld_acquire_cta(&shared.failed) != 0) return;
  bool good = true;
  for (u32 u = simt::warp(); u < a.rank.topology.num_ranks * a.readers; u += simt::num_warps()) {
    const u32 source = u / a.readers, g = u % a.readers;
    good = read_counts(a, wait, epoch, source, g, shared.left_out[source] != 0) && good;
  }
  if (!simt::sync_block_and(good)) return;
  if (!simt::sync_block_and(sum_counts(a, wait, shared, epoch))) return;
  if (simt::tid() == 0) *a.number = static_cast<u32>(epoch);
  if (simt::tid() == 0) *a.epoch = epoch;  // every thread read it before the last sync_block
}

}  // namespace uccl
