// Building a case's ranks, and the verdict on what they did.
#include "simulation/run.h"

#include <algorithm>
#include <memory>

#include "simulation/driver.h"
#include "simulation/low_latency.h"
#include "simulation/throughput.h"
#include "simulation/verdict.h"

namespace uccl::simulation {
namespace {

NetworkSettings network_of(const Case& c) {
  NetworkSettings n;
  n.num_ranks = c.world.num_ranks();
  n.num_lanes = c.world.num_workers;
  n.seed = key_of(c.seed, 0x2e7);
  n.max_in_flight = 2 * c.world.max_in_flight;  // barriers' immediates come on top of the engine's own limit
  n.profile = c.profile;
  n.faults = c.faults;
  n.calm = c.calm;
  n.lag_ns = c.world.lag_ns;
  n.reads_order = c.world.rows == Rows::kOwned;
  return n;
}

template <class Rank, class Oracle>
std::string play(const Case& c, World& world, Driver& driver, u64* rows) {
  Oracle oracle(c);
  Attendance attendance(c, driver, world);
  std::vector<std::unique_ptr<Rank>> ranks;
  for (u32 r = 0; r < world.num_ranks(); ++r)
    ranks.push_back(std::make_unique<Rank>(driver, world, attendance, oracle, c, r));
  return driver.run([&](u32 r) { ranks[r]->run(rows); });
}

}  // namespace

Outcome run_case(const Case& c, bool record) {
  thread_local Arena arena;
  arena.reset();
  Outcome out;
  const auto network = std::make_shared<SimulatedNetwork>(network_of(c));
  if (record) network->record();
  World world(c.world, network, arena);
  Driver driver(world, DriverSettings{c.seed, c.step_ns, c.in_turn, c.faults, c.leavings});
  const u64 begin = network->now_ns();
  try {
    out.violation = c.mode == Mode::kLowLatency ? play<LowLatencyRank, LowLatencyOracle>(c, world, driver, &out.rows)
                                                : play<ThroughputRank, ThroughputOracle>(c, world, driver, &out.rows);
    if (out.violation.empty()) out.violation = judge(c, world, driver);
  } catch (const std::exception& e) { out.violation = e.what(); }
  out.trace = driver.trace();
  out.steps = driver.steps();
  out.virtual_ns = network->now_ns() - begin;
  for (u32 r = 0; r < world.num_ranks(); ++r) {
    out.dead += network->dead(r);
    out.finished += driver.finished(r) && !network->dead(r);
    out.failed += !driver.finished(r) && !network->dead(r);
    for (const WorkerCounters& w : world.worker_counters(r)) out.parked += w.parked;
  }
  out.network = network->totals();
  out.perturbed = network->recorded();
  return out;
}

}  // namespace uccl::simulation
