// Between two calls that cut their streams differently: waits until everything this rank has written has been read, on
// every channel that the earlier call used. A launch of its own, since a block that checks while another already sends
// in the new geometry would wait for what cannot come. One warp.
#pragma once
#include "kernels/throughput/common.h"

namespace uccl {

struct DrainArgs {
  RankContext rank;
  u32 direction;     // Direction
  u32 num_channels;  // of the earlier call
};

// One lane: chunks below `sent` of one stream have been read.
template <class Head>
DEV void drain_stream(const WaitContext& wait, const WaitSite& site, Head head) {
  wait_until(wait, site, head, [&](u64 seen) { return seen >= site.expected; });
}

DEV void drain_dispatch(const DrainArgs& a, const WaitContext& wait, u32 node, u32 channel) {
  const TopologyView& t = a.rank.topology;
  const SignalLayout& signals = a.rank.signals;
  const u32 peer = t.host_of(t.rank, node);
  const u64 sent_word = node == t.node ? signals.stream_tail(Direction::kDispatch, t.rank, channel)
                                       : signals.sent(Direction::kDispatch, peer, channel);
  const u64 sent = simt::ld_relaxed_sys(word(own_data(a.rank), sent_word));
  WaitSite site{WaitPhase::kDispatchSend, peer, channel, sent};
  drain_stream(wait, site, [&] { return dispatch_head(a.rank, node, channel, &site.peer); });
}

DEV void drain_combine(const DrainArgs& a, const WaitContext& wait, u32 source, u32 channel) {
  const TopologyView& t = a.rank.topology;
  const SignalLayout& signals = a.rank.signals;
  u8* data = own_data(a.rank);
  const u64 tail = simt::ld_relaxed_sys(word(data, signals.stream_tail(Direction::kCombine, source, channel)));
  const u64* head = word(data, signals.stream_head(Direction::kCombine, source, channel, 0));
  drain_stream(wait, WaitSite{WaitPhase::kCombineSend, t.host_of(source, t.node), channel, tail},
               [&] { return simt::ld_acquire_sys(head); });
  if (t.is_local(source) || t.host_of(source, t.node) != t.rank) return;
  const u64 sent = simt::ld_relaxed_sys(word(data, signals.sent(Direction::kCombine, source, channel)));
  drain_stream(wait, WaitSite{WaitPhase::kCombineSend, source, channel, sent},
               [&] { return credit_of(a.rank, Direction::kCombine, source, channel); });
}

KERNEL throughput_drain(DrainArgs a) {
  const WaitContext wait = wait_context(a.rank);
  const bool dispatch = static_cast<Direction>(a.direction) == Direction::kDispatch;
  const u32 streams = dispatch ? a.rank.topology.num_nodes : a.rank.topology.num_ranks;
  for (u32 i = simt::tid(); i < streams * a.num_channels; i += simt::ntid()) {
    if (dispatch)
      drain_dispatch(a, wait, i / a.num_channels, i % a.num_channels);
    else
      drain_combine(a, wait, i / a.num_channels, i % a.num_channels);
  }
}

}  // namespace uccl
