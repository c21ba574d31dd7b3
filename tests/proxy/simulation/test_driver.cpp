// The scheduler: kernels that need each other, errors, ranks that hang, time that moves only when nothing else can.
#include "kernels/device/wait.h"
#include "kernels/layout/access.h"
#include "native/check.h"
#include "proxy/simulation/small.h"
#include "simulation/driver.h"

namespace {

using namespace uccl;
using namespace uccl::simulation;

struct Play {
  explicit Play(std::vector<FaultPlan> faults = {}) {
    const Case c = testing::small_case(Mode::kLowLatency);
    NetworkSettings n;
    n.num_ranks = 4;
    n.profile = c.profile;
    n.faults = faults;
    network = std::make_shared<SimulatedNetwork>(n);
    world = std::make_unique<World>(c.world, network, arena);
    driver = std::make_unique<Driver>(*world, DriverSettings{.seed = 3, .faults = faults});
  }
  Arena arena;
  std::shared_ptr<SimulatedNetwork> network;
  std::unique_ptr<World> world;
  std::unique_ptr<Driver> driver;
};

struct WaitArgs {
  RankContext rank;
  const u64* word;
  u64 value;
};
KERNEL wait_for_word(WaitArgs a) {
  const WaitContext wait = wait_context(a.rank);
  if (simt::tid() != 0) return;
  wait_until(
      wait, WaitSite{WaitPhase::kStart, 0, {}, a.value}, [&] { return simt::ld_acquire_sys(a.word); },
      [&](u64 seen) { return seen >= a.value; });
}

}  // namespace

TEST(simulation_driver_a_script_that_throws_ends_all) {
  Play p;
  const std::string violation = p.driver->run([&](u32 r) {
    if (r == 2) throw Violation("seen by rank 2");
    p.driver->barrier(r);
  });
  CHECK_EQ(violation, std::string("seen by rank 2"));
  CHECK(!p.driver->finished(0) && p.world->aborted(0));
}

TEST(simulation_driver_a_wait_in_vain_ends_at_its_virtual_deadline) {
  Play p;
  const u64 never = 0;
  const std::string violation = p.driver->run([&](u32 r) {
    if (r == 1) p.driver->launch(r, Kernel::kCounts, wait_for_word, WaitArgs{p.world->context(r), &never, 1}, {});
  });
  CHECK_EQ(violation, std::string());
  CHECK(!p.driver->finished(1) && p.driver->finished(0));
  const FaultRecord f = p.world->fault(1);
  CHECK_EQ(f.kind, static_cast<u32>(FaultKind::kTimeout));
  CHECK_EQ(f.peer, 0u);
  const u64 timeout = p.world->shape().timeout_ns;
  CHECK(p.driver->longest_launch().ns > timeout && p.driver->longest_launch().ns < timeout + timeout / 100);
}

TEST(simulation_driver_a_dead_rank_is_known_to_its_node_and_to_others) {
  FaultPlan death;
  death.kind = FaultPlanKind::kDeath;
  death.source = 3;
  death.begin_ns = 1'000'100;
  death.notice_ns = 500;
  Play p({death});
  const std::string violation = p.driver->run([&](u32 r) {
    for (int i = 0; i < 1000; ++i) p.driver->barrier(r);
  });
  CHECK_EQ(violation, std::string());
  for (u32 r = 0; r < 3; ++r) {
    CHECK(!p.driver->finished(r));
    CHECK_EQ(p.world->fault(r).kind, static_cast<u32>(FaultKind::kPeerLost));
    CHECK_EQ(p.world->fault(r).peer, 3u);
  }
  CHECK(p.network->now_ns() < p.world->shape().timeout_ns);  // long before anybody's deadline
}
