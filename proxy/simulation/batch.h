// Many seeds, one after the other, added up.
#pragma once
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "simulation/run.h"

namespace uccl::simulation {

struct Totals {
  u64 seeds = 0, low_latency = 0, lethal = 0;
  u64 absences = 0;  // runs in which ranks could be left out
  u64 rows = 0, writes = 0, steps = 0, virtual_ns = 0;
  u64 overtakes = 0, deepest = 0;  // writes that arrived before an earlier one; most that one overtook
  u64 parked = 0;                  // writes that an engine held until their turn
  u64 faults = 0;                  // plans that began: stalls, slow ranks, lost links, deaths
  u64 finished = 0, failed = 0, dead = 0;  // ranks
  u64 most_ranks = 0;
  u64 trace = 0;                   // of all runs, in order
  std::vector<std::pair<u64, std::string>> failures;  // seed, what must not be
};

// Seeds [first, first + count). Ends early, between two, when `stop` is set. Throws std::invalid_argument for an
// wish that cannot be.
Totals run_seeds(u64 first, u64 count, const Wish& wish, const std::atomic<bool>& stop);

// The failure of one seed, shortened and in lines; "" when it does not fail.
std::string explain_seed(u64 seed, const Wish& wish);

}  // namespace uccl::simulation
