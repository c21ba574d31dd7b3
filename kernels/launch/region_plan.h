// Where everything of a rank's memory lies, for Python, the native tests and the simulation.
#pragma once
#include <vector>

#include "kernels/layout/low_latency.h"
#include "kernels/layout/signals.h"
#include "kernels/layout/throughput.h"
#include "wire/control.h"

namespace uccl {

// What the numbering of ranks fixes.
struct GroupShape {
  u32 num_ranks, num_nodes, num_cells;
  u32 max_readers;             // ranks of the largest node
  u32 fan, num_landing_slots;  // topology.h; no slots on one node

  // `cell_of` empty: a cell is a node. Absent ranks are kNoNode. Throws std::invalid_argument when nobody is present, or
  // nobody of a node or cell.
  static GroupShape of(const std::vector<u32>& node_of, const std::vector<u32>& cell_of);
  ThroughputLayout throughput() const;  // at 0, with units of no bytes
};

struct RegionSizes {
  u32 num_channels = 0, max_local_experts = 0;
  u64 unit_bytes = 0;  // of the throughput part; multiple of 128
  LowLatencyLayout low_latency;  // its sizes; hidden 0: none are known yet
  u64 low_latency_bytes = 0;  // kept free for it in any case
};

// The flat offset space of a rank is | data | control | zero copy |. Data holds signals, the throughput part and the
// low-latency part.
struct RegionPlan {
  SignalLayout signals;
  ControlLayout control;
  ThroughputLayout throughput;
  LowLatencyLayout low_latency;
  u64 data_bytes = 0, control_offset = 0, zero_copy_offset = 0;

  RegionPlan(const GroupShape& group, const RegionSizes& sizes);
};

}  // namespace uccl
