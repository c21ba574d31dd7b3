// What the kernels of a low-latency call are told besides what is the call's own.
#include "kernels/launch/low_latency.h"

#include <algorithm>
#include <stdexcept>

namespace uccl {
namespace {

constexpr u32 kKernels = 5;
constexpr u32 kHostStagingRows = 128;
constexpr u32 kMaxBatch = 32;  // rows of dispatch that are sent together, by one warp: no more than it has lanes
constexpr u32 kMaxBatches = kMaxTokensPerRank / kMaxBatch;  // that are counted piece by piece
constexpr u32 kHostSendBlocks = 8;  // of a combine that nothing is computed beside, and of its sums
constexpr u32 kMostPieces = 16;  // warps that one row keeps busy

}  // namespace

u64 LowLatencyCalls::workspace_bytes(u32 num_ranks) {
  const u64 words = kKernels * (1 + kGridBarrierWords) + 3ull * num_ranks + kMaxBatches;
  return state_at() + LowLatencyState::bytes(num_ranks) + align_up(words * sizeof(u32), 8);
}

u64 LowLatencyCalls::state_at() { return (kMaxStagingRows + kKernels) * sizeof(u64); }

u32 LowLatencyCalls::batch_rows(u64 row_bytes) {
  constexpr u64 kBatchBytes = 256 << 10;
  return static_cast<u32>(std::clamp<u64>(kBatchBytes / row_bytes, 1, kMaxBatch));
}

LowLatencyCalls::LowLatencyCalls(const RankContext& rank, const LowLatencyLayout& layout, u32 num_experts,
                                 u8* workspace, const DeviceShape& device)
    : rank_(rank), device_(device) {
  if (layout.staging_rows > kMaxStagingRows) throw std::invalid_argument("LowLatencyCalls: too many staging rows");
  const u32 ranks = rank.topology.num_ranks;
  call_.layout = layout;
  // On a CPU few warps use them, one after the other: fewer stay in its caches.
  if (device.host) call_.layout.staging_rows = std::min(layout.staging_rows, kHostStagingRows);
  call_.num_experts = num_experts;
  call_.num_local_experts = num_experts / ranks;
  staging_tickets_ = reinterpret_cast<u64*>(workspace);
  call_.share_rows = !device.host;
  call_.admitted = staging_tickets_ + kMaxStagingRows;
  workspace += state_at();
  call_.state = reinterpret_cast<LowLatencyState*>(workspace);
  call_.ticket = reinterpret_cast<u32*>(workspace + LowLatencyState::bytes(ranks));
  call_.grid_barrier = call_.ticket + kKernels;
  num_writes_ = call_.grid_barrier + kKernels * kGridBarrierWords;
  num_sums_ = num_writes_ + ranks;
  sizes_of_sums_ = num_sums_ + ranks;
  arrivals_ = sizes_of_sums_ + ranks;
}

Grid LowLatencyCalls::grid_of(u64 rows, u32 host_units) const {
  if (device_.host) return up_to(host_units, device_.block_warps);
  const u64 blocks = std::min<u64>(device_.num_sms, ceil_div(rows * kMostPieces, device_.block_warps));
  return up_to(static_cast<u32>(blocks), device_.block_warps);
}
u64 LowLatencyCalls::most_received() const {
  return u64{rank_.topology.num_ranks} * call_.layout.max_tokens * std::max(1u, call_.layout.max_topk);
}

template <class Args>
Launch<Args> LowLatencyCalls::launch(const Args& own, u64* words, u32 kernel, const Grid& grid) const {
  Launch<Args> l{own, grid};
  l.args.rank = rank_;
  l.args.call = call_;
  l.args.call.epoch = words;
  l.args.call.ticket += kernel;
  l.args.call.admitted += kernel;
  l.args.call.grid_barrier += kernel * kGridBarrierWords;
  return l;
}

Launch<DispatchSendArgs> LowLatencyCalls::dispatch_send(u64* words, const DispatchSendArgs& own) const {
  auto l = launch(own, words, 0, grid_of(own.num_tokens, own.num_tokens));
  const u64 row = LowLatencyLayout::row_bytes(call_.layout.hidden, static_cast<RowFormat>(own.format));
  l.args.batch = batch_rows(row);
  if (!device_.host) {
    l.args.batch = std::max(l.args.batch, static_cast<u32>(ceil_div(own.num_tokens, kMaxBatches)));
    l.args.arrivals = arrivals_;
  }
  l.args.num_writes = num_writes_;
  return l;
}

Launch<DispatchReceiveArgs> LowLatencyCalls::dispatch_recv(u64* words, const DispatchReceiveArgs& own) const {
  auto l = launch(own, words, 1, grid_of(most_received(), rank_.topology.num_ranks));
  l.args.counts = reinterpret_cast<u32*>(words + kCombineWords);
  l.args.sizes = l.args.counts + call_.num_experts;
  return l;
}

Launch<CombineSendArgs> LowLatencyCalls::combine_send(u64* words, const CombineSendArgs& own, bool reduces,
                                                      bool node_reads, u32 blocks) const {
  auto l = launch(own, words, 2, grid_of(most_received(), blocks == 0 ? kHostSendBlocks : blocks));
  if (blocks != 0) l.grid.blocks = std::min(l.grid.blocks, blocks);
  CombineSendArgs& a = l.args;
  const bool plain = static_cast<RowFormat>(a.format) == RowFormat::kBf16;
  if (reduces && !plain && !call_.layout.sums_encoded())
    throw std::invalid_argument("LowLatencyCalls: no room for encoded sums");
  a.call.reduces = reduces;
  if (!reduces) {
    a.topk_idx = nullptr;
    a.weights = nullptr;
    a.num_tokens = a.topk = 0;
  }
  a.staging_ticket = staging_tickets_;
  a.own_stay = own.own_stay && plain;
  const bool stay = a.own_stay && a.zero_copy_offset != 0;
  a.node_rows = static_cast<u32>(!node_reads || !plain ? NodeRows::kCopied
                                 : stay                ? NodeRows::kStay
                                                       : NodeRows::kCopiedAndMarked);
  return l;
}

Launch<CombineReduceArgs> LowLatencyCalls::combine_reduce(const CombineSendArgs& sent,
                                                          const CombineReduceArgs& own) const {
  auto l = launch(own, sent.call.epoch, 4, grid_of(most_received(), kHostSendBlocks));
  l.args.call.reduces = 1;
  l.args.format = sent.format;
  if (static_cast<RowFormat>(sent.format) != RowFormat::kBf16) l.args.registered = nullptr;  // its rows do not stay
  l.args.num_writes = num_sums_;
  l.args.sizes = sizes_of_sums_;
  return l;
}

Launch<CombineReceiveArgs> LowLatencyCalls::combine_recv(const CombineSendArgs& sent,
                                                         const CombineReceiveArgs& own) const {
  auto l = launch(own, sent.call.epoch, 3, grid_of(own.num_tokens, own.num_tokens));
  CombineReceiveArgs& a = l.args;
  a.call.reduces = sent.call.reduces;
  a.format = sent.format;
  a.zero_copy = sent.zero_copy_offset != 0;
  a.own_rows = sent.own_stay ? sent.x : nullptr;
  a.own_stride = sent.row_stride;
  return l;
}

}  // namespace uccl
