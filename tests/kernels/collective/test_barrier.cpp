// The barrier of all ranks: nobody leaves before everybody has come, data written before it is there after it, and a
// rank that does not come is named.
#include <algorithm>

#include "kernels/launch/collective.h"
#include "kernels/world.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

void enter(World& world, u32 me, u64 round) {
  launch_kernel(rank_barrier, barrier_launch(world.context(me), round).args, LaunchShape{1, 1, 1, 0});
}

// A command that is reserved and never written: what comes behind it in ring 1 is never complete.
void block_ring(const World& world, u32 rank) { ++*world.context(rank).rings[1].head; }

// Rows that are on their way through `ring` when a rank enters the barrier.
void writes_land_before_the_barrier_ends(u32 ring, u64 shuffle_seed) {
  constexpr u32 kBytes = 64, kAll = simt::kWarp * kBytes;
  WorldShape shape;
  shape.node_of = {0, 1};
  shape.num_rings = 3;
  shape.ring_capacity = 64;
  shape.max_in_flight = 2;  // so that most of them wait while another ring's barrier could go
  shape.unit_bytes = 4096;
  shape.shuffle_seed = shuffle_seed;
  World world(shape);
  const u64 from = world.throughput.own_stream(), to = world.throughput.contributions(1);
  world.run([&](u32 me) {
    for (u64 round = 1; round <= 30; ++round) {
      if (me == 0) {
        std::fill_n(world.data(0) + from, kAll, static_cast<u8>(round));
        simt::launch({1, simt::kWarp, 0, 1, 0}, [&] {
          const RankContext& c = world.context(0);
          Command m;
          m.op = Op::kSequence;
          m.peer = 1;
          m.key = stream_key(Direction::kCombine, 0, (round - 1) * simt::kWarp + simt::lane());
          m.local_offset = from + simt::lane() * kBytes;
          m.remote_offset = to + simt::lane() * kBytes;
          m.bytes = kBytes;
          push_group(c.rings[ring], m, true, wait_context(c));
        });
      }
      enter(world, me, 2 * round - 1);
      if (me == 1) CHECK_EQ(std::count(world.data(1) + to, world.data(1) + to + kAll, static_cast<u8>(round)), kAll);
      enter(world, me, 2 * round);
      CHECK(!world.aborted(me));
    }
  });
}

}  // namespace

TEST(collective_barrier_orders_memory_in_every_topology) {
  u64 seed = 400;
  for (const auto& node_of : std::vector<std::vector<u32>>{{0}, {0, 0, 0}, {0, 1}, {0, 0, 1, 2, 2}}) {
    WorldShape shape;
    shape.node_of = node_of;
    shape.shuffle_seed = ++seed;
    shape.unit_bytes = 1024;
    World world(shape);
    const u32 ranks = world.num_ranks();
    std::vector<u64> entered(ranks, 0);  // plain words: only the barrier orders them
    world.run([&](u32 me) {
      for (u64 round = 1; round <= 20; ++round) {
        entered[me] = 2 * round - 1;
        enter(world, me, 2 * round - 1);
        if (world.aborted(me)) throw check::Failure("a barrier failed");
        for (u32 r = 0; r < ranks; ++r) CHECK_EQ(entered[r], 2 * round - 1);
        enter(world, me, 2 * round);  // nobody writes again before all have looked
      }
    });
  }
}

TEST(collective_barrier_writes_before_it_have_landed) {
  for (const u32 ring : {0u, 1u, 2u}) writes_land_before_the_barrier_ends(ring, 8 + ring);
}

TEST(collective_barrier_ends_at_the_deadline) {
  for (const bool remote : {false, true}) {
    WorldShape shape;
    shape.node_of = {0, remote ? 1u : 0u};
    shape.timeout_ns = 50'000'000;
    World world(shape);
    enter(world, 0, 1);
    const Fault f = world.fault(0);
    CHECK(f.kind == FaultKind::kTimeout && f.phase == WaitPhase::kBarrier);
    CHECK_EQ(f.peer, remote ? kNoPeer : 1u);
    CHECK_EQ(f.expected, 1u);
  }
}

TEST(collective_barrier_is_not_entered_before_all_that_was_sent_has_arrived) {
  WorldShape shape;
  shape.node_of = {0, 1};
  shape.num_rings = 2;
  shape.timeout_ns = 50'000'000;
  World world(shape);
  block_ring(world, 0);
  world.run([&](u32 me) { enter(world, me, 1); });
  const Fault behind = world.fault(0), beside = world.fault(1);
  CHECK(behind.kind == FaultKind::kTimeout && behind.phase == WaitPhase::kBarrierSend);
  CHECK(behind.peer == kNoPeer && behind.expected == 1 && behind.seen == 0);
  CHECK(beside.kind == FaultKind::kTimeout && beside.phase == WaitPhase::kBarrier);
}

TEST(collective_barrier_with_shrink_is_entered_in_half_the_time_whatever_does_not_arrive) {
  WorldShape shape;
  shape.node_of = {0, 0, 1};
  shape.num_rings = 2;
  shape.timeout_ns = 2'000'000'000;
  shape.shrink = true;
  World world(shape);
  block_ring(world, 1);
  world.run([&](u32 me) { enter(world, me, 1); });
  for (u32 me = 0; me < 3; ++me) {
    CHECK(world.fault(me).kind == FaultKind::kNone);
    for (u32 other = 0; other < 3; ++other) CHECK_EQ(world.mask(me)[other], 0u);
  }
}

TEST(collective_barrier_refuses_a_round_that_needs_this_one) {
  WorldShape shape;
  shape.node_of = {0, 0};
  shape.unit_bytes = 1024;
  World world(shape);
  *reinterpret_cast<u64*>(world.data(1) + world.context(0).signals.barrier()) = 3;
  enter(world, 0, 1);
  const Fault f = world.fault(0);
  CHECK(f.kind == FaultKind::kBadArrival && f.phase == WaitPhase::kBarrier);
  CHECK(f.peer == 1 && f.expected == 2 && f.seen == 3);
}
