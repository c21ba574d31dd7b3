// What the kernels of a throughput call are told besides what is the call's own.
#include "kernels/launch/throughput.h"

namespace uccl {
namespace {

constexpr u32 kTokensOfWarp = 32;  // that a block of `layout`, one warp, takes at a time

}  // namespace

ThroughputCalls::ThroughputCalls(const RankContext& rank, const ThroughputLayout& layout, u8* workspace,
                                 const DeviceShape& device)
    : rank_(rank), device_(device), layout_(layout) {
  identities_ = reinterpret_cast<IdentityState*>(workspace);
  epoch_ = reinterpret_cast<u64*>(identities_ + 1);
  settled_ = reinterpret_cast<SettledGeometry*>(epoch_ + 1);
}

Launch<LayoutArgs> ThroughputCalls::layout(const LayoutArgs& own) const {
  Launch<LayoutArgs> l{own, up_to(static_cast<u32>(ceil_div(own.num_tokens, kTokensOfWarp)), 1)};
  l.args.topology = rank_.topology;
  l.args.mask = rank_.mask;
  return l;
}

Launch<CountsArgs> ThroughputCalls::counts(const CountsArgs& own, const RowShape& shape,
                                           const RoutingTables& routing) const {
  Launch<CountsArgs> l{own, exactly(1, device_.block_warps)};
  CountsArgs& a = l.args;
  a.rank = rank_;
  a.layout = layout_;
  a.shape = shape;
  a.epoch = epoch_;
  a.num_tokens = routing.num_tokens;
  a.num_channels = routing.channels;
  a.num_local_experts = routing.num_local_experts;
  a.readers = layout_.max_readers;
  a.taken = routing.is_token_in_rank != own.is_token_in_rank ? routing.is_token_in_rank : nullptr;
  a.channel_prefix = routing.channel_prefix;
  a.node_rows = routing.node_rows;
  a.recv_tokens = routing.recv_tokens;
  a.recv_begin = routing.recv_begin;
  a.stream_rows = routing.stream_rows;
  a.reducer_tokens = routing.reducer_tokens;
  a.rank_prefix = routing.rank_prefix;
  a.expert_counts = routing.expert_counts;
  a.recv_total = routing.recv_total;
  a.number = routing.number;
  return l;
}

Launch<SettleArgs> ThroughputCalls::settle(Direction direction, u32 num_channels, u32 row_bytes) const {
  Launch<SettleArgs> l{{}, exactly(1, 1)};
  l.args.rank = rank_;
  l.args.last = settled_;
  l.args.direction = static_cast<u32>(direction);
  l.args.num_channels = num_channels;
  l.args.row_bytes = row_bytes;
  return l;
}

ThroughputCall ThroughputCalls::call(const RowShape& shape, const StreamGeometry& geometry,
                                     const RoutingTables& routing) const {
  ThroughputCall c{};
  c.layout = layout_;
  c.geometry = geometry;
  c.shape = shape;
  c.num_local_experts = routing.num_local_experts;
  c.is_token_in_rank = routing.is_token_in_rank;
  c.node_rows = routing.node_rows;
  c.recv_tokens = routing.recv_tokens;
  c.recv_begin = routing.recv_begin;
  c.stream_rows = routing.stream_rows;
  c.reducer_tokens = routing.reducer_tokens;
  c.number = routing.number;
  c.identities = identities_;
  c.num_tokens = routing.num_tokens;
  c.readers = layout_.max_readers;
  c.share_rows = !device_.host;
  return c;
}

Launch<DispatchArgs> ThroughputCalls::dispatch(const DispatchArgs& own, const RowShape& shape,
                                               const StreamGeometry& geometry, const RoutingTables& routing,
                                               bool identify) const {
  Launch<DispatchArgs> l{own, exactly(2 * routing.channels, device_.block_warps)};  // senders and receivers
  l.args.rank = rank_;
  l.args.call = call(shape, geometry, routing);
  l.args.call.identify = identify;
  l.args.recv_total = routing.recv_total;
  return l;
}

u64 ThroughputCalls::scratch_bytes(u32 channels, u32 hidden) const {
  return rank_.topology.num_nodes > 1 ? align_up(u64{channels} * device_.block_warps * hidden * sizeof(u16), 16) : 0;
}

u64 ThroughputCalls::combine_bytes(u32 channels, u32 hidden) const {
  return scratch_bytes(channels, hidden) + u64{channels} * rank_.topology.num_cells * sizeof(PartialState);
}

Launch<CombineArgs> ThroughputCalls::combine(const CombineArgs& own, const RowShape& shape,
                                             const StreamGeometry& geometry, const RoutingTables& routing,
                                             u8* workspace) const {
  const u32 roles = rank_.topology.num_nodes > 1 ? 3 : 2;  // contributors, mergers, and who sums for other nodes
  Launch<CombineArgs> l{own, exactly(roles * routing.channels, device_.block_warps)};
  l.args.rank = rank_;
  l.args.call = call(shape, geometry, routing);
  l.args.scratch = reinterpret_cast<u16*>(workspace);
  l.args.partials = reinterpret_cast<PartialState*>(workspace + scratch_bytes(routing.channels, own.hidden));
  return l;
}

}  // namespace uccl
