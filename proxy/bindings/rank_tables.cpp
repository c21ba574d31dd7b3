// Node numbering, member lists and views of a rank's rings, checked and laid out for kernels.
#include "bindings/rank_tables.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "ring/producer.h"

namespace uccl {
namespace {

void refuse(const std::string& what) { throw std::invalid_argument("RankTables: " + what); }

}  // namespace

RankTables::RankTables(const RankTablesSettings& s) : node_of_(s.node_of) {
  const u32 ranks = static_cast<u32>(node_of_.size());
  if (ranks == 0 || ranks > kMaxRanks) refuse("node_of needs 1 to 4096 entries");
  if (s.rank >= ranks) refuse("rank is beyond node_of");
  const u32 nodes = *std::max_element(node_of_.begin(), node_of_.end()) + 1;
  local_of_.resize(ranks);
  node_begin_.assign(nodes + 1, 0);
  for (u32 r = 0; r < ranks; ++r) local_of_[r] = node_begin_[node_of_[r] + 1]++;
  const u32 largest = *std::max_element(node_begin_.begin(), node_begin_.end());
  const u32 smallest = *std::min_element(node_begin_.begin() + 1, node_begin_.end());
  if (smallest == 0) refuse("a node without ranks");
  if (largest > kMaxRanksPerNode) refuse("more than 64 ranks on one node");
  for (u32 n = 0; n < nodes; ++n) node_begin_[n + 1] += node_begin_[n];
  members_.resize(ranks);
  for (u32 r = 0; r < ranks; ++r) members_[node_begin_[node_of_[r]] + local_of_[r]] = r;
  for (u64 a : s.data) data_.push_back(reinterpret_cast<u8*>(a));
  for (u64 a : s.control) control_.push_back(reinterpret_cast<u8*>(a));
  for (u32 i = 0; i < s.num_rings; ++i)
    rings_.push_back(ring_view(reinterpret_cast<void*>(s.rings + i * ring_bytes(s.ring_capacity)), s.ring_capacity));

  TopologyView& t = context_.topology;
  t = TopologyView{node_of_.data(),
                   local_of_.data(),
                   node_begin_.data(),
                   members_.data(),
                   ranks,
                   nodes,
                   s.rank,
                   node_of_[s.rank],
                   local_of_[s.rank],
                   0,
                   static_cast<u32>(ceil_div(largest, smallest)),
                   0};
  t.local_size = t.size_of(t.node);
  if (data_.size() != t.local_size || control_.size() != t.local_size)
    refuse("data and control need one address a node rank");
  context_.data = data_.data();
  context_.control = control_.data();
  context_.rings = rings_.data();
  context_.num_rings = s.num_rings;
  context_.shrink = s.shrink;
  context_.mask = reinterpret_cast<u32*>(s.mask);
  context_.peer_stats = reinterpret_cast<u64*>(s.peer_stats);
  context_.timeout_ns = s.timeout_ns;
  context_.control_offset = s.control_offset;
  context_.signals.num_ranks = ranks;
  context_.signals.num_channels = s.num_channels;
  context_.signals.max_readers = largest;
  context_.control_layout = ControlLayout{ranks, s.num_channels};
}

}  // namespace uccl
