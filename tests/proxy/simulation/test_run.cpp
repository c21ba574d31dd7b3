// Whole runs: equal for equal seeds, different for different ones, right under disorder, and honest about losses.
#include "native/check.h"
#include "proxy/simulation/small.h"
#include "simulation/run.h"

namespace {
using namespace uccl;
using namespace uccl::simulation;
}  // namespace

TEST(simulation_run_is_the_same_for_the_same_seed) {
  for (u64 seed = 1; seed <= 25; ++seed) {
    const Case c = draw_case(seed, "any");
    const Outcome a = run_case(c), b = run_case(c, true), other = run_case(draw_case(seed + 1, "any"));
    CHECK_EQ(a.violation, std::string());
    CHECK_EQ(a.trace, b.trace);
    CHECK_EQ(a.steps, b.steps);
    CHECK_EQ(a.network.trace, b.network.trace);
    CHECK(a.trace != other.trace);
  }
}

TEST(simulation_run_meets_disorder_and_is_right) {
  u64 overtakes = 0, parked = 0;
  for (const Mode mode : {Mode::kLowLatency, Mode::kThroughput})
    for (u64 seed = 0; seed < 20; ++seed) {
      Case c = testing::small_case(mode);
      c.seed = seed;
      c.profile = link_profile("srd");
      const Outcome o = run_case(c);
      CHECK_EQ(o.violation, std::string());
      CHECK_EQ(o.finished, 4u);
      overtakes += o.network.overtakes;
      parked += o.parked;
    }
  CHECK(overtakes > 100 && parked > 20);
}

TEST(simulation_run_reports_every_kind_of_loss) {
  for (const FaultPlanKind kind : {FaultPlanKind::kLinkLoss, FaultPlanKind::kHalfOpen, FaultPlanKind::kDeath})
    for (const Mode mode : {Mode::kLowLatency, Mode::kThroughput})
      for (u64 begin = 0; begin < 60'000; begin += 7'000) {
        Case c = testing::small_case(mode);
        c.rounds = 12;
        FaultPlan p;
        p.kind = kind;
        p.source = 1;
        p.target = 3;
        p.begin_ns = 1'000'001 + begin;
        p.notice_ns = 40'000;
        c.faults = {p};
        const Outcome o = run_case(c);
        CHECK_EQ(o.violation, std::string());
        CHECK(o.failed >= (kind == FaultPlanKind::kDeath ? 3u : 1u));
        CHECK_EQ(o.dead, kind == FaultPlanKind::kDeath ? 1u : 0u);
      }
}

TEST(simulation_run_outlives_stalls_and_slow_ranks) {
  for (const FaultPlanKind kind : {FaultPlanKind::kStall, FaultPlanKind::kSlow}) {
    Case c = testing::small_case(Mode::kThroughput);
    FaultPlan p;
    p.kind = kind;
    p.source = 0;
    p.target = 2;
    p.begin_ns = 1'000'000;
    p.end_ns = 11'000'000;
    p.period_ns = 50'000;
    c.faults = {p};
    const Outcome o = run_case(c);
    CHECK_EQ(o.violation, std::string());
    CHECK_EQ(o.finished, 4u);
    CHECK(o.virtual_ns > (kind == FaultPlanKind::kStall ? 9'000'000u : 150'000u));
  }
}

namespace {

// How many of 20 runs go wrong, each with another seed, when rows lie in GPUs' memory and NICs' bytes are seen late there.
u32 wrong_runs(Case c, Rows rows) {
  u32 wrong = 0;
  u64 lagging = 0;
  c.world.rows = rows;
  c.profile = link_profile("srd");
  for (c.seed = 0; c.seed < 20; ++c.seed) {
    const Outcome o = run_case(c);
    wrong += !o.violation.empty();
    lagging += o.network.lagging;
  }
  CHECK(lagging > 100);
  return wrong;
}

}  // namespace

TEST(simulation_run_with_rows_in_gpus_is_right_when_engines_flush) {
  for (const Mode mode : {Mode::kLowLatency, Mode::kThroughput}) {
    CHECK_EQ(wrong_runs(testing::small_case(mode), Rows::kFlushed), 0u);
    CHECK_EQ(wrong_runs(testing::shrinking_case(mode), Rows::kFlushed), 0u);
  }
}

// Where a GPU sees whatever came before a flag that its kernel has read, that is enough for its own kernels, which with
// enable_shrink are the only readers, and not for those of other GPUs of the node.
TEST(simulation_run_with_rows_in_gpus_needs_a_flush_where_other_gpus_read_them) {
  for (const Mode mode : {Mode::kLowLatency, Mode::kThroughput}) {
    CHECK_EQ(wrong_runs(testing::shrinking_case(mode), Rows::kOwned), 0u);
    CHECK(wrong_runs(testing::small_case(mode), Rows::kOwned) > 0);
  }
}

TEST(simulation_run_finds_that_nobody_flushes) {
  for (const Mode mode : {Mode::kLowLatency, Mode::kThroughput})
    CHECK(wrong_runs(testing::small_case(mode), Rows::kForgotten) > 10);
}
