// A failing run made small: perturbations of the network, faults, the drawn order of steps, rounds and parallelism are
// left out as long as the run still fails. What remains is what the failure needs, or nearly so.
#pragma once
#include <string>

#include "simulation/run.h"

namespace uccl::simulation {

struct Shortened {
  Case small;
  Outcome outcome;  // of it
  u32 runs = 0;     // that it took
};

// `c` fails. Runs it at most `most_runs` times in other forms; the same for the same case.
Shortened shorten(const Case& c, u32 most_runs = 300);

// The shortened run in lines: what failed, the case, the faults and the writes that were still treated specially.
std::string explain(const Shortened& s);

}  // namespace uccl::simulation
