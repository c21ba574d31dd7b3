// Offsets of a rank's regions.
#include "kernels/launch/region_plan.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/layout/topology.h"
#include "wire/limits.h"

namespace uccl {
namespace {

constexpr u64 kPage = 4096;

// How many ranks each node, or each cell, has.
std::vector<u32> sizes_of(const std::vector<u32>& of) {
  std::vector<u32> sizes;
  for (const u32 group : of) {
    if (group == kNoNode) continue;
    if (group >= of.size()) throw std::invalid_argument("GroupShape: a node or cell without ranks");
    if (group >= sizes.size()) sizes.resize(group + 1);
    ++sizes[group];
  }
  if (sizes.empty()) throw std::invalid_argument("GroupShape: no rank is present");
  if (std::count(sizes.begin(), sizes.end(), 0u) != 0)
    throw std::invalid_argument("GroupShape: a node or cell without ranks");
  return sizes;
}

}  // namespace

GroupShape GroupShape::of(const std::vector<u32>& node_of, const std::vector<u32>& cell_of) {
  const std::vector<u32> nodes = sizes_of(node_of), cells = cell_of.empty() ? nodes : sizes_of(cell_of);
  GroupShape s;
  s.num_ranks = static_cast<u32>(node_of.size());
  s.num_nodes = static_cast<u32>(nodes.size());
  s.num_cells = static_cast<u32>(cells.size());
  s.max_readers = *std::max_element(nodes.begin(), nodes.end());
  s.fan = static_cast<u32>(ceil_div(s.max_readers, *std::min_element(cells.begin(), cells.end())));
  s.num_landing_slots = s.num_nodes > 1 ? s.num_nodes * s.fan : 0;
  return s;
}

ThroughputLayout GroupShape::throughput() const {
  ThroughputLayout l;
  l.num_ranks = num_ranks;
  l.num_cells = num_cells;
  l.num_landing_slots = num_landing_slots;
  l.max_readers = max_readers;
  return l;
}

RegionPlan::RegionPlan(const GroupShape& group, const RegionSizes& sizes)
    : throughput(group.throughput()), low_latency(sizes.low_latency) {
  signals.num_ranks = group.num_ranks;
  signals.num_channels = sizes.num_channels;
  signals.max_readers = group.max_readers;
  control = ControlLayout{group.num_ranks, sizes.num_channels};
  throughput.base = align_up(signals.bytes(), kPage);
  throughput.max_local_experts = sizes.max_local_experts;
  throughput.unit_bytes = sizes.unit_bytes;
  low_latency.num_ranks = group.num_ranks;
  low_latency.num_landing_slots = group.num_landing_slots;
  if (group.num_nodes == 1) low_latency.staging_rows = 0;
  low_latency.base = align_up(throughput.base + throughput.bytes(), kPage);
  const u64 rows = low_latency.hidden == 0 ? 0 : low_latency.bytes();
  data_bytes = align_up(low_latency.base + std::max(rows, sizes.low_latency_bytes), 16) + kRegionSlackBytes;
  control_offset = align_up(data_bytes, kPage);
  zero_copy_offset = align_up(control_offset + control.bytes(), kPage);
}

}  // namespace uccl
