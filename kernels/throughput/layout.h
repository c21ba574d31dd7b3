// get_dispatch_layout: how many tokens go to each rank, node and expert, and which token goes where. One lane a token.
// What is routed to a masked or absent rank goes nowhere and is not counted.
#pragma once
#include "kernels/layout/access.h"

namespace uccl {

struct LayoutArgs {
  TopologyView topology;
  const u32* mask;              // [N], see RankContext; or null
  const i64* topk_idx;          // [num_tokens, topk]; outside [0, num_experts) = not routed
  u32* num_tokens_per_rank;     // [N], zeroed; a token counts once a rank
  u32* num_tokens_per_node;     // [nodes], zeroed, or null
  u32* num_tokens_per_expert;   // [E], zeroed; every selection counts
  u8* is_token_in_rank;         // [num_tokens, N]
  u32 num_tokens, topk, num_experts, unused;
};

DEV bool takes_part(const LayoutArgs& a, u32 rank) {
  return !a.topology.is_absent(rank) && (a.mask == nullptr || simt::ld_relaxed_sys(&a.mask[rank]) == 0);
}

// Whether one of a token's selections before the k-th goes to this node as well.
DEV bool node_named_before(const LayoutArgs& a, const i64* ids, u32 k, u32 node) {
  for (u32 i = 0; i < k; ++i) {
    if (ids[i] < 0 || ids[i] >= static_cast<i64>(a.num_experts)) continue;
    const u32 rank = static_cast<u32>(ids[i]) / (a.num_experts / a.topology.num_ranks);
    if (a.topology.node_of[rank] == node && takes_part(a, rank)) return true;
  }
  return false;
}

KERNEL throughput_layout(LayoutArgs a) {
  const u32 ranks = a.topology.num_ranks, per_rank = a.num_experts / ranks;
  for (u32 t = simt::bid() * simt::ntid() + simt::tid(); t < a.num_tokens; t += simt::nbid() * simt::ntid()) {
    u8* row = a.is_token_in_rank + static_cast<u64>(t) * ranks;
    for (u32 r = 0; r < ranks; ++r) row[r] = 0;
    const i64* ids = a.topk_idx + static_cast<u64>(t) * a.topk;
    for (u32 k = 0; k < a.topk; ++k) {
      const i64 e = ids[k];
      if (e < 0 || e >= static_cast<i64>(a.num_experts)) continue;
      const u32 rank = static_cast<u32>(e) / per_rank;
      if (!takes_part(a, rank)) continue;
      simt::add_gpu(&a.num_tokens_per_expert[e], 1u);
      if (row[rank]) continue;
      row[rank] = 1;
      simt::add_gpu(&a.num_tokens_per_rank[rank], 1u);
      const u32 node = a.topology.node_of[rank];
      if (a.num_tokens_per_node != nullptr && !node_named_before(a, ids, k, node))
        simt::add_gpu(&a.num_tokens_per_node[node], 1u);
    }
  }
}

}  // namespace uccl
