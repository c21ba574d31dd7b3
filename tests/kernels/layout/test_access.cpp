// The device-side shorthands: which flag a reader looks at, the last block of a grid, launches that fail, masks, sums.
#include <algorithm>
#include <atomic>

#include "kernels/layout/access.h"
#include "kernels/world.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

TEST(layout_access_arrival_flag_is_where_its_writer_writes) {
  WorldShape shape;
  shape.node_of = {0, 0, 1, 1, 1};
  World world(shape);
  for (u32 me = 0; me < 5; ++me)
    for (u32 source = 0; source < 5; ++source) {
      const RankContext& c = world.context(me);
      const u8* flag = reinterpret_cast<const u8*>(arrival_flag(c, Phase::kCounts, source));
      if (c.topology.is_local(source))
        CHECK(flag == world.data(source) + c.signals.flag(Phase::kCounts, source));
      else
        CHECK(flag == world.control(c.topology.landing_rank(source, c.topology.node)) +
                          c.control_layout.flag(Phase::kCounts, source));
    }
}

TEST(layout_access_last_block_sees_what_every_block_wrote) {
  for (const u32 grid : {1u, 2u, 7u})
    for (u64 seed = 1; seed < 6; ++seed) {
      u32 ticket = 0;
      std::vector<u32> wrote(grid * simt::kWarp * 2, 0);
      std::atomic<u32> last_threads{0};
      for (u32 round = 1; round <= 3; ++round) {  // the ticket returns to 0 by itself
        last_threads = 0;
        simt::launch({grid, 2 * simt::kWarp, 16, 2, seed}, [&] {
          wrote[simt::bid() * simt::ntid() + simt::tid()] = round;
          if (!last_block(&ticket, &simt::smem<u32>())) return;
          last_threads.fetch_add(1);
          for (const u32 w : wrote) CHECK_EQ(w, round);
        });
        CHECK_EQ(last_threads.load(), 2 * simt::kWarp);
        CHECK_EQ(ticket, 0u);
      }
    }
}

TEST(layout_access_failed_launch_has_no_last_block) {
  for (u32 failing = 0; failing < 3; ++failing) {
    u32 ticket = 0;
    std::atomic<u32> last_threads{0};
    simt::launch({3, simt::kWarp, 16, 1, failing + 1}, [&] {
      if (simt::bid() == failing && simt::lane() == 0) fail_launch(&ticket);
      if (last_block(&ticket, &simt::smem<u32>())) last_threads.fetch_add(1);
    });
    CHECK_EQ(last_threads.load(), 0u);
    CHECK(launch_failed(&ticket));
  }
  const u32 all_arrived = 65535;  // no count of blocks looks like a failure
  CHECK(!launch_failed(&all_arrived));
}

TEST(layout_access_warp_agrees_with_lane_0) {
  for (const bool value : {false, true}) {
    std::atomic<u32> agreed{0};
    simt::launch({1, simt::kWarp, 0, 1, 0}, [&] { agreed.fetch_add(warp_agree(value == (simt::lane() == 0))); });
    CHECK_EQ(agreed.load(), value ? simt::kWarp : 0u);
  }
}

TEST(layout_access_may_not_start_after_a_fault) {
  World world({});
  std::atomic<u32> started{0};
  const auto try_it = [&] {
    started = 0;
    simt::launch({2, 2 * simt::kWarp, 0, 1, 0}, [&] { started.fetch_add(may_start(wait_context(world.context(0)))); });
    return started.load();
  };
  CHECK_EQ(try_it(), 4 * simt::kWarp);
  record_fault(wait_context(world.context(0)), WaitSite{WaitPhase::kCounts, 0, {}, 1}, FaultKind::kTimeout, 0);
  CHECK_EQ(try_it(), 0u);
}

TEST(layout_access_masks_rings_and_sums) {
  WorldShape shape;
  shape.node_of = {0, 1, 2, 3, 4};
  shape.num_rings = 2;
  World world(shape);
  const RankContext& c = world.context(0);
  world.mask(0)[3] = 1;
  for (u32 r = 0; r < 5; ++r) CHECK_EQ(masked(c, r), r == 3);
  RankContext no_mask = c;
  no_mask.mask = nullptr;
  CHECK(!masked(no_mask, 3));
  CHECK(&ring_to(c, 3) == &c.rings[1] && &ring_of_channel(c, 2) == &c.rings[0]);
  simt::launch({4, simt::kWarp, 0, 2, 0}, [&] { add_stat(c, 2, PeerStat::kBytesIn, simt::lane()); });
  CHECK_EQ(c.peer_stats[2 * kPeerStats + static_cast<u32>(PeerStat::kBytesIn)],
           4ull * simt::kWarp * (simt::kWarp - 1) / 2);
}
