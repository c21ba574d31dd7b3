// Ranks of a simulated world: tables, fresh and old counters, fault records.
#include "native/check.h"
#include "proxy/simulation/small.h"
#include "simulation/world.h"

namespace {

using namespace uccl;
using namespace uccl::simulation;

struct Built {
  explicit Built(const WorldShape& shape) {
    NetworkSettings n;
    n.num_ranks = shape.num_ranks();
    n.num_lanes = shape.num_workers;
    n.profile = link_profile("rc");
    network = std::make_shared<SimulatedNetwork>(n);
    world = std::make_unique<World>(shape, network, arena);
  }
  Arena arena;
  std::shared_ptr<SimulatedNetwork> network;
  std::unique_ptr<World> world;
};

}  // namespace

TEST(simulation_world_ranks_see_their_node) {
  Built b(testing::small_case(Mode::kLowLatency).world);
  CHECK_EQ(b.world->num_nodes, 2u);
  CHECK_EQ(b.world->max_readers, 2u);
  for (u32 r = 0; r < 4; ++r) {
    const RankContext& c = b.world->context(r);
    CHECK_EQ(c.topology.rank, r);
    CHECK_EQ(c.topology.node, r / 2);
    CHECK(c.data[r % 2] == b.world->data(r) && c.data[1 - r % 2] == b.world->data(r ^ 1));
    CHECK(b.world->rings_idle(r) && !b.world->aborted(r));
    CHECK(!b.world->worker(r, 0).turn());
  }
}

TEST(simulation_world_ages_every_counter) {
  WorldShape shape = testing::small_case(Mode::kThroughput).world;
  shape.age = (1ull << 32) - 3;
  Built b(shape);
  const RankContext& c = b.world->context(1);
  const auto word = [&](u64 offset) { return *reinterpret_cast<const u64*>(b.world->control(1) + offset); };
  CHECK_EQ(word(c.control_layout.flag(Phase::kCounts, 3)), shape.age);
  CHECK_EQ(word(c.control_layout.credit(Direction::kCombine, 2, 1)), shape.age);
  CHECK_EQ(word(c.control_layout.consumed(Phase::kCombine, 3)), shape.age);
  CHECK_EQ(word(ControlLayout::kBarrier), shape.age);
  CHECK_EQ(word(ControlLayout::kAbort), 0u);
  for (u32 r = 0; r < 4; ++r) CHECK_EQ(word(c.control_layout.departed(r)), 0u);
  CHECK_EQ(*c.rings[0].head % (2 * shape.ring_capacity), 0u);
  CHECK(*c.rings[0].head > shape.age - 2 * shape.ring_capacity && b.world->rings_idle(1));
}

TEST(simulation_world_keeps_the_first_fault) {
  Built b(testing::small_case(Mode::kLowLatency).world);
  CHECK_EQ(b.world->fault(2).kind, 0u);
  b.world->raise_timeout(2);
  CHECK(b.world->aborted(2) && !b.world->aborted(3));
  CHECK_EQ(b.world->fault(2).kind, static_cast<u32>(FaultKind::kTimeout));
}
