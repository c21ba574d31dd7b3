// The loop over seeds.
#include "simulation/batch.h"

#include <algorithm>

#include "simulation/shorten.h"
#include "simulation/values.h"

namespace uccl::simulation {

Totals run_seeds(u64 first, u64 count, const Wish& wish, const std::atomic<bool>& stop) {
  Totals t;
  for (u64 seed = first; seed - first < count && !stop.load(std::memory_order_relaxed); ++seed) {
    const Case c = draw_case(seed, wish);
    Outcome o = run_case(c);
    ++t.seeds;
    t.low_latency += c.mode == Mode::kLowLatency;
    t.lethal += c.lethal();
    t.absences += c.absences();
    t.rows += o.rows;
    t.writes += o.network.writes;
    t.steps += o.steps;
    t.virtual_ns += o.virtual_ns;
    t.overtakes += o.network.overtakes;
    t.deepest = std::max(t.deepest, o.network.deepest);
    t.parked += o.parked;
    t.faults += o.network.faults;
    t.finished += o.finished;
    t.failed += o.failed;
    t.dead += o.dead;
    t.most_ranks = std::max<u64>(t.most_ranks, c.world.num_ranks());
    t.trace = mix(t.trace ^ o.trace);
    if (!o.violation.empty()) t.failures.emplace_back(seed, std::move(o.violation));
  }
  return t;
}

std::string explain_seed(u64 seed, const Wish& wish) {
  const Shortened s = shorten(draw_case(seed, wish));
  return s.outcome.violation.empty() ? "" : explain(s);
}

}  // namespace uccl::simulation
