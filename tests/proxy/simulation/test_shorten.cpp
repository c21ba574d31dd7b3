// Shortening: what does not matter is left out, and the result is the same every time.
#include "native/check.h"
#include "proxy/simulation/small.h"
#include "simulation/shorten.h"

namespace {

using namespace uccl;
using namespace uccl::simulation;

// Fails whatever the network does: unlike a lost link, a stall longer than the timeout is no excuse.
Case stalled() {
  Case c = testing::small_case(Mode::kLowLatency);
  c.profile = link_profile("srd");
  c.rounds = 5;
  FaultPlan slow, stall;
  slow.kind = FaultPlanKind::kSlow;
  slow.source = 3;
  slow.begin_ns = 1'000'000;
  slow.end_ns = 1'100'000;
  slow.period_ns = 10'000;
  stall.kind = FaultPlanKind::kStall;
  stall.source = 0;
  stall.target = 2;
  stall.begin_ns = 1'000'000;
  stall.end_ns = stall.begin_ns + 3 * c.world.timeout_ns;
  c.faults = {slow, stall};
  return c;
}

}  // namespace

TEST(simulation_shorten_keeps_only_what_the_failure_needs) {
  const Shortened s = shorten(stalled());
  CHECK(!s.outcome.violation.empty());
  CHECK_EQ(s.small.faults.size(), 1u);
  CHECK(s.small.faults[0].kind == FaultPlanKind::kStall);
  CHECK_EQ(s.small.rounds, 1u);
  CHECK(s.small.in_turn);
  CHECK(s.outcome.perturbed.empty());
  CHECK(s.runs > 4 && s.runs <= 300);
  const std::string text = explain(s);
  CHECK(text.find("stall of 0 -> 2") != std::string::npos && text.find("in turn") != std::string::npos);
  CHECK_EQ(text, explain(shorten(stalled())));
}

TEST(simulation_shorten_leaves_a_good_run_alone) {
  const Shortened s = shorten(testing::small_case(Mode::kThroughput));
  CHECK_EQ(s.outcome.violation, std::string());
  CHECK_EQ(s.runs, 1u);
}

TEST(simulation_shorten_never_takes_more_runs_than_it_may) { CHECK(shorten(stalled(), 3).runs <= 3); }
