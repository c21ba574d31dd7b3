// The low-latency calls of one rank as launches. A caller (Python, the native tests, the simulation) fills in those fields
// of the kernel's argument struct that are the call's own: `own` below. The methods fill in the others, and choose the grid.
#pragma once
#include "kernels/launch/launch.h"
#include "kernels/low_latency/combine_recv.h"
#include "kernels/low_latency/combine_reduce.h"
#include "kernels/low_latency/combine_send.h"
#include "kernels/low_latency/dispatch_recv.h"
#include "kernels/low_latency/dispatch_send.h"

namespace uccl {

// Shared memory of a block.
inline u64 shared_bytes(const DispatchSendArgs&, u32) { return sizeof(DispatchSendShared); }
inline u64 shared_bytes(const DispatchReceiveArgs&, u32) { return sizeof(DispatchReceiveShared); }
inline u64 shared_bytes(const CombineSendArgs&, u32) { return sizeof(CombineSendShared); }
inline u64 shared_bytes(const CombineReduceArgs&, u32) { return sizeof(CombineReduceShared); }
inline u64 shared_bytes(const CombineReceiveArgs&, u32) { return sizeof(CombineReceiveShared); }

class LowLatencyCalls {
 public:
  static constexpr u32 kMaxStagingRows = 2048;
  // The caller keeps so many u64 words for a call, from its sending half until its receiving half has run.
  static constexpr u64 kCombineWords = 2;
  u64 dispatch_words() const { return kCombineWords + ceil_div(call_.num_experts + rank_.topology.num_ranks, 2); }
  // Kernels count from call to call in the workspace. The caller zeroes it once and gives it to no other rank; 8-byte
  // aligned.
  static u64 workspace_bytes(u32 num_ranks);
  static u64 state_at();  // bytes into it to its LowLatencyState

  // Rows of `row_bytes` that dispatch stages before it sends; where pieces are few for the tokens of a call, more.
  static u32 batch_rows(u64 row_bytes);

  // Throws std::invalid_argument when `layout` has too many staging rows.
  LowLatencyCalls(const RankContext& rank, const LowLatencyLayout& layout, u32 num_experts, u8* workspace,
                  const DeviceShape& device = {});

  LowLatencyState& state() const { return *call_.state; }

  // `own`: x, topk_idx, num_tokens, topk, format, round_scale, global_scale.
  Launch<DispatchSendArgs> dispatch_send(u64* words, const DispatchSendArgs& own) const;
  // `own`: outputs, cumulative_stats, wait_stats, and the format of the sending half.
  Launch<DispatchReceiveArgs> dispatch_recv(u64* words, const DispatchReceiveArgs& own) const;

  // Throws std::invalid_argument when sums are to be encoded and there is no room for it.
  // `own`: x, row_stride, zero_copy_offset and x_at, src_info, layout_range, format, signals; own_stay, which counts
  // where rows travel as they are; and with `reduces` num_tokens, topk, topk_idx, weights. `node_reads`: ranks of the
  // node read each other's registered memory. `blocks`: 0 = all that the rank has.
  Launch<CombineSendArgs> combine_send(u64* words, const CombineSendArgs& own, bool reduces, bool node_reads,
                                       u32 blocks = 0) const;
  // Of the combine that `sent` began, between its halves where it reduces. `own`: wait_stats, registered.
  Launch<CombineReduceArgs> combine_reduce(const CombineSendArgs& sent, const CombineReduceArgs& own) const;
  // Of that combine too. `own`: out, topk_idx, weights, num_tokens, topk, wait_stats, registered.
  Launch<CombineReceiveArgs> combine_recv(const CombineSendArgs& sent, const CombineReceiveArgs& own) const;

 private:
  template <class Args>
  Launch<Args> launch(const Args& own, u64* words, u32 kernel, const Grid& grid) const;
  // For `rows` rows of a call; a host has `host_units`.
  Grid grid_of(u64 rows, u32 host_units) const;
  u64 most_received() const;  // rows

  RankContext rank_;
  DeviceShape device_;
  LowLatencyCall call_{};  // of the first kernel
  u64* staging_tickets_;
  u32 *num_writes_, *num_sums_, *sizes_of_sums_, *arrivals_;
};

}  // namespace uccl
