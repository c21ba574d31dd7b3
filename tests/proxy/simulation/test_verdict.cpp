// The judge: what it lets pass in a run that lost nothing, and what it does not.
#include "native/check.h"
#include "proxy/simulation/small.h"
#include "simulation/verdict.h"

namespace {

using namespace uccl;
using namespace uccl::simulation;

std::string verdict_of(Case c, const std::function<void(World&, Driver&, u32)>& script) {
  NetworkSettings n;
  n.num_ranks = 4;
  n.profile = c.profile;
  const auto network = std::make_shared<SimulatedNetwork>(n);
  Arena arena;
  World world(c.world, network, arena);
  Driver driver(world, DriverSettings{});
  const std::string violation = driver.run([&](u32 r) { script(world, driver, r); });
  return violation.empty() ? judge(c, world, driver) : violation;
}

FaultPlan cut(u32 source, u32 target) {
  FaultPlan p;
  p.kind = FaultPlanKind::kHalfOpen;
  p.source = source;
  p.target = target;
  return p;
}

void fail_naming(World& world, u32 rank, FaultKind kind, WaitPhase phase, u32 peer) {
  Faults faults(world.control(rank), world.peer_counters(rank).data(), 4);
  faults.raise({.kind = kind, .phase = phase, .peer = peer});
}

// Rank 3 leaves; `also` is left out by rank 0 as well.
std::string verdict_of_leaving(u32 also) {
  Case c = testing::shrinking_case(Mode::kLowLatency);
  c.leavings = {Leaving{LeavingKind::kAgreed, 3, 0}};
  return verdict_of(c, [&](World&, Driver& d, u32 r) {
    if (r == 3) throw RankLeft{};
    d.leave_out(r, 3);
    if (r == 0) d.leave_out(r, also);
  });
}

}  // namespace

TEST(simulation_verdict_nobody_is_left_out_without_a_reason) {
  CHECK_EQ(verdict_of_leaving(3), std::string());
  CHECK(verdict_of_leaving(1).find("has left out rank 1, which took part") != std::string::npos);
  Case c = testing::shrinking_case(Mode::kLowLatency);
  c.leavings = {Leaving{LeavingKind::kAgreed, 3, 0}};
  const std::string failed = verdict_of(c, [](World& w, Driver& d, u32 r) {
    if (r == 2) fail_naming(w, 2, FaultKind::kTimeout, WaitPhase::kBarrier, 3);
    if (r == 2) d.barrier(r);
  });
  CHECK(failed.find("where it should leave others out") != std::string::npos);
}

TEST(simulation_verdict_nobody_may_fail_without_a_loss) {
  Case c = testing::small_case(Mode::kLowLatency);
  CHECK_EQ(verdict_of(c, [](World&, Driver& d, u32 r) { d.barrier(r); }), std::string());
  const std::string bad = verdict_of(c, [](World& w, Driver& d, u32 r) {
    if (r == 1) fail_naming(w, 1, FaultKind::kTimeout, WaitPhase::kBarrier, 2);
    d.barrier(r);
  });
  CHECK(bad.find("though nothing was lost") != std::string::npos);
}

TEST(simulation_verdict_the_right_rank_is_blamed) {
  Case c = testing::small_case(Mode::kLowLatency);
  c.faults = {cut(0, 2)};
  // Rank 1 waits at a barrier for ranks that never come, and its own record says for whom.
  CHECK_EQ(verdict_of(c,
                      [](World&, Driver& d, u32 r) {
                        if (r == 1) d.barrier(r);
                      }),
           std::string());
  const auto with = [&](FaultKind kind, WaitPhase phase, u32 peer) {
    return verdict_of(c, [=](World& w, Driver& d, u32 r) {
      if (r != 1) return;
      fail_naming(w, 1, kind, phase, peer);
      d.barrier(r);
    });
  };
  CHECK_EQ(with(FaultKind::kTimeout, WaitPhase::kBarrier, 2), std::string());
  CHECK_EQ(with(FaultKind::kTimeout, WaitPhase::kBarrierSend, ~0u), std::string());
  CHECK(with(FaultKind::kTimeout, WaitPhase::kBarrier, 3).find("blames a rank") != std::string::npos);
  CHECK(with(FaultKind::kTimeout, WaitPhase::kCombineSend, 2).find("phase") != std::string::npos);
  CHECK(with(FaultKind::kPeerLost, WaitPhase::kNone, 3).find("wrong rank") != std::string::npos);
  CHECK(with(FaultKind::kMismatch, WaitPhase::kBarrier, 2).find("wrong kind") != std::string::npos);
  CHECK(with(FaultKind::kTimeout, WaitPhase::kBarrier, 9).find("does not exist") != std::string::npos);
}
