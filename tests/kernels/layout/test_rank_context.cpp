// What RankTables puts into the struct that every kernel gets by value.
#include <type_traits>

#include "kernels/layout/rank_context.h"
#include "kernels/world.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

// A launch copies it byte by byte into a GPU's constant bank.
static_assert(std::is_trivially_copyable_v<RankContext>);

TEST(layout_rank_context_shows_each_rank_its_node) {
  WorldShape shape;
  shape.node_of = {0, 1, 0, 1, 1};
  shape.num_rings = 3;
  shape.ring_capacity = 16;
  shape.timeout_ns = 12345;
  shape.shrink = true;
  World world(shape);
  for (u32 me = 0; me < 5; ++me) {
    const RankContext& c = world.context(me);
    CHECK_EQ(c.topology.local_size, shape.node_of[me] == 0 ? 2u : 3u);
    for (u32 i = 0; i < c.topology.local_size; ++i) {
      const u32 rank = c.topology.member(c.topology.node, i);
      CHECK(c.data[i] == world.data(rank) && c.control[i] == world.control(rank));
    }
    CHECK_EQ(c.num_rings, 3u);
    for (u32 i = 0; i < 3; ++i) {
      CHECK_EQ(c.rings[i].capacity, 16u);
      CHECK(i == 0 || c.rings[i].slots != c.rings[i - 1].slots);
    }
    CHECK_EQ(c.shrink, 1u);
    CHECK_EQ(c.timeout_ns, 12345u);
    CHECK_EQ(c.signals.num_ranks, 5u);
    CHECK_EQ(c.signals.max_readers, 3u);
    CHECK_EQ(c.control_layout.num_channels, shape.num_channels);
    CHECK_EQ(c.topology.fan, 2u);
  }
}
