// The throughput calls of one rank as launches; see low_latency.h.
#pragma once
#include "kernels/launch/launch.h"
#include "kernels/throughput/combine.h"
#include "kernels/throughput/counts.h"
#include "kernels/throughput/dispatch.h"
#include "kernels/throughput/layout.h"
#include "kernels/throughput/settle.h"

namespace uccl {

// Shared memory of a block.
inline u64 shared_bytes(const LayoutArgs&, u32) { return 0; }
inline u64 shared_bytes(const CountsArgs&, u32) { return sizeof(CountsShared); }
inline u64 shared_bytes(const SettleArgs&, u32) { return sizeof(SettleShared); }
inline u64 shared_bytes(const DispatchArgs&, u32) { return sizeof(DispatchShared); }
inline u64 shared_bytes(const CombineArgs&, u32 warps) { return CombineShared::bytes(warps); }

// The tables of one routing, which a count exchange writes and every later call goes by; sizes as in CountsArgs.
struct RoutingTables {
  u32 channels = 0, num_tokens = 0, num_local_experts = 0;
  u8* is_token_in_rank = nullptr;  // as rows were counted
  u32* channel_prefix = nullptr;
  u32* node_rows = nullptr;
  u32* recv_tokens = nullptr;
  u32* recv_begin = nullptr;
  u32* stream_rows = nullptr;
  u32* reducer_tokens = nullptr;
  u32* rank_prefix = nullptr;
  u32* expert_counts = nullptr;
  u32* recv_total = nullptr;
  u32* number = nullptr;
};

class ThroughputCalls {
 public:
  // As of LowLatencyCalls.
  static constexpr u64 kWorkspaceBytes = sizeof(IdentityState) + kNumDirections * sizeof(SettledGeometry) + sizeof(u64);

  ThroughputCalls(const RankContext& rank, const ThroughputLayout& layout, u8* workspace,
                  const DeviceShape& device = {});

  IdentityState& identities() const { return *identities_; }
  SettledGeometry& settled(Direction d) const { return settled_[static_cast<u32>(d)]; }
  u64& epoch() const { return *epoch_; }  // count exchanges so far

  // `own`: all but topology and mask.
  Launch<LayoutArgs> layout(const LayoutArgs& own) const;
  // The count exchange. `own`: is_token_in_rank and num_tokens_per_*, topk_idx, expert_alignment, findings, refusal. The
  // routing's own is_token_in_rank is another one where ranks may be masked.
  Launch<CountsArgs> counts(const CountsArgs& own, const RowShape& shape, const RoutingTables& routing) const;
  u64 findings_words(u32 num_experts) const { return LayoutFindings::words(rank_.topology.num_ranks, num_experts); }
  // Before streams of a direction are cut in another way than before.
  Launch<SettleArgs> settle(Direction direction, u32 num_channels, u32 row_bytes) const;
  // `own`: x, scales, ids and weights, all outputs, capacity, pad_tail. `identify`: no counts were exchanged for it.
  Launch<DispatchArgs> dispatch(const DispatchArgs& own, const RowShape& shape, const StreamGeometry& geometry,
                                const RoutingTables& routing, bool identify) const;
  // `own`: x, hidden, weights, recv_src_idx, biases, outputs, arenas, x_offset, x_in_arena. `workspace`:
  // combine_bytes() of this launch alone, 16-byte aligned.
  Launch<CombineArgs> combine(const CombineArgs& own, const RowShape& shape, const StreamGeometry& geometry,
                              const RoutingTables& routing, u8* workspace) const;
  u64 combine_bytes(u32 channels, u32 hidden) const;

 private:
  ThroughputCall call(const RowShape& shape, const StreamGeometry& geometry, const RoutingTables& routing) const;
  u64 scratch_bytes(u32 channels, u32 hidden) const;

  RankContext rank_;
  DeviceShape device_;
  ThroughputLayout layout_;
  IdentityState* identities_;
  SettledGeometry* settled_;
  u64* epoch_;
};

}  // namespace uccl
