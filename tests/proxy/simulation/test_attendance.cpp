// Who must be found where: leavings of every kind in both modes, and that a rank is not left out without a reason.
#include "native/check.h"
#include "proxy/simulation/small.h"
#include "simulation/attendance.h"
#include "simulation/driver.h"
#include "simulation/run.h"

namespace {

using namespace uccl;
using namespace uccl::simulation;

FaultPlan loss(FaultPlanKind kind, u32 source, u32 target) {
  FaultPlan p;
  p.kind = kind;
  p.source = source;
  p.target = target;
  p.begin_ns = 1'010'000;
  p.notice_ns = 30'000;
  return p;
}

}  // namespace

TEST(simulation_attendance_leavings_of_every_kind_cost_nobody_else) {
  for (const Mode mode : {Mode::kLowLatency, Mode::kThroughput})
    for (const LeavingKind kind : {LeavingKind::kAgreed, LeavingKind::kMiddle, LeavingKind::kSilent})
      for (u32 round = 0; round < 4; ++round)
        for (u32 rank = 0; rank < 4; ++rank) {
          Case c = testing::shrinking_case(mode);
          c.leavings = {Leaving{kind, rank, round}};
          if (kind == LeavingKind::kSilent && mode == Mode::kLowLatency) c.leavings[0].launches = 3 * round + 1;
          const simulation::Outcome o = run_case(c);
          CHECK_EQ(o.violation, std::string());
          CHECK_EQ(o.finished, 3u);
          CHECK(o.rows > 0);
        }
}

TEST(simulation_attendance_a_lost_rank_is_here_or_gone_and_others_are_here) {
  for (const Mode mode : {Mode::kLowLatency, Mode::kThroughput})
    for (const FaultPlanKind kind : {FaultPlanKind::kDeath, FaultPlanKind::kLinkLoss})
      for (u64 begin = 0; begin < 60'000; begin += 9'000) {
        Case c = testing::shrinking_case(mode);
        c.world.timeout_ns = 100'000'000'000;
        c.faults = {loss(kind, 1, 2)};
        c.faults[0].begin_ns += begin;
        const simulation::Outcome o = run_case(c);
        CHECK_EQ(o.violation, std::string());
        CHECK_EQ(o.finished, kind == FaultPlanKind::kDeath ? 3u : 4u);
        CHECK_EQ(o.failed, 0u);
      }
}

TEST(simulation_attendance_knows_the_reasons) {
  Case c = testing::shrinking_case(Mode::kLowLatency);
  CHECK(!may_leave_out(c, 0, 1) && !leaves(c, 3));
  c.leavings = {Leaving{LeavingKind::kAgreed, 3, 1}};
  CHECK(may_leave_out(c, 0, 3) && may_leave_out(c, 3, 0) && !may_leave_out(c, 0, 1) && leaves(c, 3));
  c.faults = {loss(FaultPlanKind::kLinkLoss, 0, 2)};
  CHECK(may_leave_out(c, 0, 2) && may_leave_out(c, 2, 0) && !may_leave_out(c, 1, 2));
  c.faults = {loss(FaultPlanKind::kDeath, 1, 2)};
  CHECK(may_leave_out(c, 0, 1) && may_leave_out(c, 1, 2) && !may_leave_out(c, 0, 2));
}

TEST(simulation_attendance_sees_a_rank_left_out_without_a_reason) {
  Case c = testing::shrinking_case(Mode::kLowLatency);
  c.leavings = {Leaving{LeavingKind::kAgreed, 3, 1}};
  NetworkSettings n;
  n.num_ranks = 4;
  n.profile = c.profile;
  Arena arena;
  World world(c.world, std::make_shared<SimulatedNetwork>(n), arena);
  Driver driver(world, DriverSettings{});
  Attendance attendance(c, driver, world);
  CHECK(attendance.seen_by(0, 1, Deed::kRows) == Presences(4, Presence::kHere));
  world.leave_out(0, 3);
  attendance.did(3, 1, Deed::kRows);
  const Presences rows = attendance.seen_by(0, 1, Deed::kRows), sums = attendance.seen_by(0, 1, Deed::kCombine);
  CHECK(rows[3] == Presence::kHere && sums[3] == Presence::kGone && sums[1] == Presence::kHere);
  c.faults = {loss(FaultPlanKind::kDeath, 3, 1)};
  CHECK(attendance.seen_by(0, 1, Deed::kCombine)[3] == Presence::kEither);
  CHECK_EQ(attendance.left_out_by(0)[3], 1);
  CHECK_EQ(attendance.left_out_by(1)[3], 0);
  world.leave_out(0, 1);
  c.faults.clear();
  CHECK_THROWS(Violation, attendance.seen_by(0, 1, Deed::kRows));
}
