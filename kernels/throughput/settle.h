// Between two calls that cut their streams differently: waits until everything this rank has written has been read, on
// every channel that the earlier call used. How that one cut them is noted here, by the kernels, so that recorded calls
// find out for themselves when they are replayed. A launch of its own, since a block that checks while another already
// sends in the new geometry would wait for what cannot come. One block.
#pragma once
#include "kernels/throughput/common.h"

namespace uccl {

// How the last call of one direction cut its streams; with the units' size, which never changes, that is all of it.
struct SettledGeometry {
  u32 num_channels, row_bytes;  // 0, 0: there was no call
};

struct SettleArgs {
  RankContext rank;
  SettledGeometry* last;  // [kNumDirections], zeroed once
  u32 direction;  // Direction
  u32 num_channels;  // of the call that comes next
  u32 row_bytes;
  u32 unused;
};
struct SettleShared {
  u32 failed;
};

// One lane: chunks below `site.expected` of one stream have been read, or never will be.
template <class Head>
DEV bool drain_stream(const RankContext& c, const WaitContext& wait, WaitSite& site, Head head) {
  const u32 first = site.peer;
  for (;;) {
    bool absent;
    if (!wait_or_mask(c, wait, site, head, [&](u64 seen) { return seen >= site.expected; }, &absent)) return false;
    if (!absent && !keeps_step(c, wait, site, head(), site.expected)) return false;
    if (!absent || site.peer == first) return true;
    site.peer = first;  // one reader fewer: what the others have read may do
  }
}

DEV bool drain_dispatch(const SettleArgs& a, const WaitContext& wait, u32 cell, u32 channel) {
  const TopologyView& t = a.rank.topology;
  const SignalLayout& signals = a.rank.signals;
  if (!t.is_audience(cell)) return true;
  const u32 peer = cell == t.cell ? t.rank : t.landing_rank(t.rank, cell);
  const u64 sent_word = cell == t.cell ? signals.stream_tail(Direction::kDispatch, t.rank, channel)
                                       : signals.sent(Direction::kDispatch, peer, channel);
  const u64 sent = simt::ld_relaxed_sys(word(own_data(a.rank), sent_word));
  WaitSite site{WaitPhase::kDispatchSend, peer, channel, sent};
  return drain_stream(a.rank, wait, site, [&] { return dispatch_head(a.rank, cell, channel, &site.peer); });
}

DEV bool drain_combine(const SettleArgs& a, const WaitContext& wait, u32 source, u32 channel) {
  const TopologyView& t = a.rank.topology;
  const SignalLayout& signals = a.rank.signals;
  if (t.is_absent(source)) return true;
  u8* data = own_data(a.rank);
  const u64 tail = simt::ld_relaxed_sys(word(data, signals.stream_tail(Direction::kCombine, source, channel)));
  const u64* head = word(data, signals.stream_head(Direction::kCombine, source, channel, 0));
  WaitSite read{WaitPhase::kCombineSend, combine_peer(a.rank, source), channel, tail};
  if (!drain_stream(a.rank, wait, read, SystemWord{head})) return false;
  if (t.is_local(source) || t.landing_rank(source, t.cell) != t.rank) return true;
  const u64 sent = simt::ld_relaxed_sys(word(data, signals.sent(Direction::kCombine, source, channel)));
  WaitSite arrived{WaitPhase::kCombineSend, source, channel, sent};
  return drain_stream(a.rank, wait, arrived, [&] { return credit_of(a.rank, Direction::kCombine, source, channel); });
}

KERNEL KERNEL_BOUNDS(kMaxBlockLanes) throughput_settle(SettleArgs a) {
  SettleShared& shared = simt::smem<SettleShared>();
  const WaitContext wait = wait_context(a.rank);
  SettledGeometry& last = a.last[a.direction];
  const u32 channels = last.num_channels;  // 0: nothing to drain
  if (channels == a.num_channels && last.row_bytes == a.row_bytes) return;
  if (simt::tid() == 0) simt::st_release_cta(&shared.failed, 0u);
  simt::sync_block();
  const bool dispatch = static_cast<Direction>(a.direction) == Direction::kDispatch;
  const u32 streams = dispatch ? a.rank.topology.num_cells : a.rank.topology.num_ranks;
  for (u32 i = simt::tid(); i < streams * channels; i += simt::ntid())
    if (!(dispatch ? drain_dispatch(a, wait, i / channels, i % channels)
                   : drain_combine(a, wait, i / channels, i % channels)))
      simt::st_release_cta(&shared.failed, 1u);
  simt::sync_block();
  if (simt::tid() == 0 && simt::ld_acquire_cta(&shared.failed) == 0)
    last = SettledGeometry{a.num_channels, a.row_bytes};
}

}  // namespace uccl
