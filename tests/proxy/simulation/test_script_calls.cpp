// What scripts call: barriers, silence, launches that are the last, leaving others out.
#include "native/check.h"
#include "proxy/simulation/small.h"
#include "simulation/driver.h"

namespace {

using namespace uccl;
using namespace uccl::simulation;

struct Play {
  explicit Play(std::vector<Leaving> leavings = {}) {
    const Case c = testing::shrinking_case(Mode::kLowLatency);
    NetworkSettings n;
    n.num_ranks = 4;
    n.profile = c.profile;
    network = std::make_shared<SimulatedNetwork>(n);
    world = std::make_unique<World>(c.world, network, arena);
    driver = std::make_unique<Driver>(*world, DriverSettings{.seed = 3, .leavings = std::move(leavings)});
  }
  Arena arena;
  std::shared_ptr<SimulatedNetwork> network;
  std::unique_ptr<World> world;
  std::unique_ptr<Driver> driver;
};

}  // namespace

TEST(simulation_script_calls_barriers_and_quiet_of_all_ranks) {
  Play p;
  std::vector<u32> done(4);
  const std::string violation = p.driver->run([&](u32 r) {
    for (int i = 0; i < 5; ++i) {
      p.driver->barrier(r);
      p.driver->quiet(r);
      ++done[r];
    }
  });
  CHECK_EQ(violation, std::string());
  for (u32 r = 0; r < 4; ++r) {
    CHECK_EQ(done[r], 5u);
    CHECK(p.driver->finished(r));
  }
  CHECK(p.driver->steps() > 20 && p.network->totals().arrivals >= 5 * 8);
}

TEST(simulation_script_calls_name_every_kernel) {
  for (u32 k = 0; k <= static_cast<u32>(Kernel::kQuiet); ++k)
    for (u32 other = 0; other < k; ++other)
      CHECK(std::string(name_of(static_cast<Kernel>(k))) != name_of(static_cast<Kernel>(other)));
}

// Rank 2 does two barriers and is not there for the third; the others leave it out, one by one, and go on.
TEST(simulation_script_calls_a_silent_rank_is_left_out_at_the_deadline) {
  Play p({Leaving{LeavingKind::kSilent, 2, 0, 2}});
  std::vector<u32> done(4);
  const std::string violation = p.driver->run([&](u32 r) {
    for (int i = 0; i < 5; ++i) {
      p.driver->barrier(r);
      ++done[r];
    }
  });
  CHECK_EQ(violation, std::string());
  for (u32 r = 0; r < 4; ++r) {
    CHECK_EQ(done[r], r == 2 ? 2u : 5u);
    CHECK_EQ(p.driver->finished(r), r != 2);
    for (u32 peer = 0; peer < 4; ++peer) CHECK_EQ(p.world->masked(r, peer), r != 2 && peer == 2);
    CHECK_EQ(p.world->fault(r).kind, 0u);
  }
  CHECK(p.network->now_ns() > p.world->shape().timeout_ns);
}

// Whom all leave out at once nobody waits for.
TEST(simulation_script_calls_what_was_left_out_is_not_waited_for) {
  Play p;
  const std::string violation = p.driver->run([&](u32 r) {
    p.driver->barrier(r);
    if (r == 1) throw RankLeft{};
    p.driver->leave_out(r, 1);
    for (int i = 0; i < 3; ++i) p.driver->barrier(r);
    p.driver->quiet(r);
  });
  CHECK_EQ(violation, std::string());
  CHECK(p.driver->finished(0) && p.driver->finished(2) && p.driver->finished(3) && !p.driver->finished(1));
  CHECK(p.network->now_ns() < p.world->shape().timeout_ns);
}
