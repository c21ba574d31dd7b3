// The rule for reusing a buffer set: two results may be outstanding, ranks drift apart by as much as the rule allows,
// and a rank that only reads still lets the others go on.
#include <sched.h>

#include "kernels/low_latency/calls.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

WorldShape shape_of(std::vector<u32> node_of, u64 shuffle_seed) {
  WorldShape shape;
  shape.node_of = std::move(node_of);
  shape.max_tokens = 8;
  shape.hidden = 64;
  shape.max_topk = 3;
  shape.shuffle_seed = shuffle_seed;
  return shape;
}
const std::vector<std::vector<u32>> kWorlds = {{0, 0}, {0, 1}, {0, 0, 1}, {0, 1, 1, 2}};

}  // namespace

TEST(low_latency_common_two_dispatches_outstanding) {
  u64 seed = 80;
  for (const auto& node_of : kWorlds) {
    World world(shape_of(node_of, ++seed));
    LowLatencyCase c;
    c.seed = seed;
    c.num_experts = 2 * world.num_ranks();
    world.run([&](u32 me) {
      LowLatencyRank rank(world, me, c);
      std::deque<u64> open;
      u64 sent = 0;
      for (u64 step = 0; sent < 24 || !open.empty(); ++step) {
        const bool may_send = sent < 24 && open.size() < 2;
        if (may_send && (open.empty() || mix(seed ^ me << 8 ^ step) % 2)) {  // each rank in its own rhythm
          const TokenInput in = low_latency_input(world, c, sent, me);
          rank.dispatch_send(in);
          open.push_back(sent++);
          continue;
        }
        Received got(world, c);
        rank.dispatch_recv(&got);
        check_no_fault(world, me, "dispatch");
        check_received(world, c, open.front(), me, got);
        open.pop_front();
      }
    });
  }
}

TEST(low_latency_common_combines_outstanding) {
  u64 seed = 90;
  for (const auto& node_of : kWorlds) {
    const WorldShape shape = shape_of(node_of, ++seed);
    World world(shape);
    LowLatencyCase c;
    c.seed = seed;
    c.num_experts = 2 * world.num_ranks();
    world.run([&](u32 me) {
      LowLatencyRank rank(world, me, c);
      for (u64 round = 0; round < 12; round += 2) {  // two whole rounds interleaved
        TokenInput in[2];
        std::vector<Received> got;
        for (u64 i = 0; i < 2; ++i) {
          in[i] = low_latency_input(world, c, round + i, me);
          rank.dispatch_send(in[i]);
          got.emplace_back(world, c);
        }
        for (u64 i = 0; i < 2; ++i) {
          rank.dispatch_recv(&got[i]);
          check_no_fault(world, me, "dispatch");
          check_received(world, c, round + i, me, got[i]);
          Poisoned<u16> x(u64{c.num_experts} * shape.max_tokens * shape.hidden);
          fill_combine_rows(world, c, round + i, got[i], me, x.data(), shape.hidden);
          rank.combine_send(got[i], x.data());
        }
        for (u64 i = 0; i < 2; ++i) {
          Poisoned<u16> out(u64{shape.max_tokens} * shape.hidden);
          rank.combine_recv(in[i], &out);
          check_no_fault(world, me, "combine");
          check_combined(world, c, round + i, me, out);
        }
      }
    });
  }
}

TEST(low_latency_common_dispatch_without_combine) {  // what has been read is told by announcements alone
  u64 seed = 95;
  for (const auto& node_of : kWorlds) {
    World world(shape_of(node_of, ++seed));
    LowLatencyCase c;
    c.seed = seed;
    c.num_experts = 2 * world.num_ranks();
    world.run([&](u32 me) {
      LowLatencyRank rank(world, me, c);
      for (u64 round = 0; round < 12; ++round) {
        const TokenInput in = low_latency_input(world, c, round, me);
        Received got(world, c);
        rank.dispatch_send(in);
        rank.dispatch_recv(&got);
        check_no_fault(world, me, "dispatch");
        check_received(world, c, round, me, got);
      }
    });
  }
}

TEST(low_latency_common_reuse_waits_for_the_slowest_reader) {
  World world(shape_of({0, 0}, 0));
  LowLatencyCase c;
  c.num_experts = 4;
  u64 sent = 0;
  world.run([&](u32 me) {
    LowLatencyRank rank(world, me, c);
    for (u64 i = 0; i < (me == 0 ? 3u : 2u); ++i) {
      const TokenInput in = low_latency_input(world, c, i, me);
      if (me == 0) {
        rank.dispatch_send(in);
        __atomic_store_n(&sent, i + 1, __ATOMIC_RELEASE);  // pairs with the acquire below
        continue;
      }
      while (__atomic_load_n(&sent, __ATOMIC_ACQUIRE) < 2) sched_yield();
      if (i == 0) {  // two are on their way; the third may not leave before this rank has read the first
        for (u32 turns = 0; turns < 2000; ++turns) sched_yield();
        CHECK_EQ(__atomic_load_n(&sent, __ATOMIC_ACQUIRE), 2u);
      }
      Received got(world, c);
      rank.dispatch_send(in);
      rank.dispatch_recv(&got);
      check_no_fault(world, me, "dispatch");
      check_received(world, c, i, me, got);
    }
  });
  CHECK_EQ(sent, 3u);
}
