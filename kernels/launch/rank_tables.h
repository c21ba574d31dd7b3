// Owns the tables that a RankContext points at: in its own memory for the CPU, or as an image that the caller copies to
// where a GPU reads it.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/layout/rank_context.h"

namespace uccl {

struct RankTablesSettings {
  u32 rank = 0;
  std::vector<u32> node_of;  // [num_ranks] node of every rank, by lowest rank; kNoNode = absent
  std::vector<u32> cell_of;  // likewise cells, each within a node; empty: a cell is a node
  std::vector<u64> data, control;  // addresses of the regions of this node's ranks, by local index
  u64 rings = 0;  // address of num_rings rings, back to back
  u32 num_rings = 1, ring_capacity = 1024;
  u64 ring_words = 0;  // address of u64 [num_rings][3], zeroed: each ring's head, cached tail and done, where
  // producers have them near; 0 = in the rings' own headers
  u64 mask = 0, peer_stats = 0;  // addresses; u32 [num_ranks], u64 [num_ranks * kPeerStats]
  bool shrink = false;
  u64 timeout_ns = 0;
  u64 control_offset = 0;
  u32 num_channels = 1;
};

// Ranks by node or by cell.
struct Grouping {
  std::vector<u32> of, index, begin, members;  // as TopologyView has them
  u32 count() const { return static_cast<u32>(begin.size() - 1); }
  // Throws std::invalid_argument for a group without ranks; `what` says of which kind.
  static Grouping make(const std::vector<u32>& of, const char* what);
};

// TopologyView::landing_rank for whoever is no kernel. `cell_of` empty: a cell is a node. Throws std::invalid_argument
// for a node or cell without ranks, and std::out_of_range for a source or cell that there is not.
class LandingRanks {
 public:
  LandingRanks(const std::vector<u32>& node_of, const std::vector<u32>& cell_of);
  std::vector<u32> of(u32 source) const;  // [num_cells]; the source is present
  std::vector<u32> in(u32 cell) const;  // [num_ranks], kNoNode for an absent source

 private:
  TopologyView view() const;
  Grouping nodes_, cells_;
};

class RankTables {
 public:
  explicit RankTables(const RankTablesSettings& settings);
  RankTables(const RankTables&) = delete;
  RankTables& operator=(const RankTables&) = delete;
  const RankContext& context() const { return context_; }
  // (the tables' bytes, the context that points at them once they lie at `address`, which is 8-byte aligned).
  std::pair<std::string, RankContext> placed_at(u64 address) const;

 private:
  Grouping nodes_, cells_;
  std::vector<u32> mates_;
  std::vector<u8*> data_, control_;
  std::vector<RingView> rings_;
  RankContext context_{};
};

}  // namespace uccl
