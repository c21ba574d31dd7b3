// One simulated run from beginning to end: builds the ranks of a case, lets them play, and judges what came of it.
#pragma once
#include <string>
#include <vector>

#include "simulation/case.h"
#include "transport/simulated/network.h"

namespace uccl::simulation {

struct Outcome {
  std::string violation;  // "" = everything is as it must be
  u64 trace = 0;          // hash over every step and every delivery: equal for equal cases
  u64 rows = 0;           // compared with the oracle
  u64 steps = 0, virtual_ns = 0;
  u64 parked = 0;         // writes that an engine held until their turn
  u32 finished = 0, failed = 0, dead = 0;  // ranks: came to their end, have a fault record, were killed
  NetworkTotals network;
  std::vector<SimulatedNetwork::Recorded> perturbed;  // when asked for
};

// Never throws for what the run finds. `record`: keep the list of perturbed writes.
Outcome run_case(const Case& c, bool record = false);

}  // namespace uccl::simulation
