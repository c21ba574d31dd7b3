// Owns the host tables that a RankContext points at (CPU build; a GPU's tables are device arrays made in Python).
#pragma once
#include <memory>
#include <vector>

#include "kernels/layout/rank_context.h"

namespace uccl {

struct RankTablesSettings {
  u32 rank = 0;
  std::vector<u32> node_of;            // [num_ranks] node of every rank; nodes numbered by their lowest rank
  std::vector<u64> data, control;      // addresses of the regions of this node's ranks, by local index
  u64 rings = 0;                       // address of num_rings rings, back to back
  u32 num_rings = 1, ring_capacity = 1024;
  u64 mask = 0, peer_stats = 0;        // addresses; u32 [num_ranks], u64 [num_ranks * kPeerStats]
  bool shrink = false;
  u64 timeout_ns = 0;
  u64 control_offset = 0;
  u32 num_channels = 1;
};

class RankTables {
 public:
  explicit RankTables(const RankTablesSettings& settings);
  RankTables(const RankTables&) = delete;
  RankTables& operator=(const RankTables&) = delete;
  const RankContext& context() const { return context_; }

 private:
  std::vector<u32> node_of_, local_of_, node_begin_, members_;
  std::vector<u8*> data_, control_;
  std::vector<RingView> rings_;
  RankContext context_{};
};

}  // namespace uccl
