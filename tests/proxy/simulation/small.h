// A small case that tests change: four ranks on two nodes, low latency, a network without any disorder.
#pragma once
#include "simulation/case.h"

namespace uccl::testing {

inline simulation::Case small_case(simulation::Mode mode) {
  simulation::Case c;
  c.seed = 77;
  c.mode = mode;
  c.world.node_of = {0, 0, 1, 1};
  c.profile = link_profile("rc");
  c.profile.jitter_ns = c.profile.straggler_ns = 0;
  if (mode == simulation::Mode::kLowLatency) {
    c.world.max_tokens = 4;
    c.world.hidden = 32;
    c.world.max_topk = 3;
  } else {
    c.world.unit_bytes = 4096;
  }
  return c;
}

// The same with enable_shrink: ranks that do not come are left out.
inline simulation::Case shrinking_case(simulation::Mode mode) {
  simulation::Case c = small_case(mode);
  c.world.cell_of = {0, 1, 2, 3};
  c.world.shrink = true;
  c.rounds = 4;
  return c;
}

}  // namespace uccl::testing
