// Low-latency combine, sending half: staging that is smaller than the grid, zero copy, logfmt on the wire, and nothing
// published or read after a failure.
#include "kernels/low_latency/calls.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

WorldShape shape_of(std::vector<u32> node_of, u32 hidden) {
  WorldShape shape;
  shape.node_of = std::move(node_of);
  shape.max_tokens = 14;
  shape.hidden = hidden;
  shape.max_topk = 4;
  return shape;
}

u64 bytes_written(const World& world) {
  u64 sum = 0;
  for (u32 r = 0; r < world.num_ranks(); ++r)
    for (const WorkerCounters& w : world.worker_counters(r)) sum += __atomic_load_n(&w.write_bytes, __ATOMIC_RELAXED);
  return sum;
}

}  // namespace

TEST(low_latency_combine_send_with_few_staging_rows) {
  u64 seed = 60;
  for (const u32 staging : {1u, 3u, 8u})
    for (const u32 grid : {1u, 3u}) {
      WorldShape shape = shape_of({0, 1, 0, 2}, 72);
      shape.staging_rows = staging;
      shape.num_rings = 1 + staging % 3;
      shape.shuffle_seed = ++seed % 2 ? seed : 0;
      LowLatencyCase c;
      c.seed = seed;
      c.num_experts = 8;
      c.shape = LaunchShape{grid, 2, 1, seed};
      low_latency_rounds(shape, c, 5);
    }
}

TEST(low_latency_combine_send_zero_copy) {
  for (const u32 hidden : {128u, 512u}) {
    WorldShape shape = shape_of({0, 1, 1}, hidden);
    shape.shuffle_seed = hidden;
    LowLatencyCase c;
    c.num_experts = 6;
    c.zero_copy = true;
    shape.zero_copy_bytes = 2 * align_up(6ull * shape.max_tokens * (hidden + hidden / 64 + 8) * 2, 128);
    low_latency_rounds(shape, c, 6);
  }
}

TEST(low_latency_combine_send_logfmt_sends_less) {
  u64 written[2] = {0, 0};
  for (const bool logfmt : {false, true}) {
    WorldShape shape = shape_of({0, 1, 1}, 1024);
    LowLatencyCase c;
    c.num_experts = 6;
    c.logfmt = logfmt;
    World world(shape);
    world.run([&](u32 me) {
      LowLatencyRank rank(world, me, c);
      for (u64 round = 0; round < 5; ++round) low_latency_round(world, rank, c, round, me);
    });
    written[logfmt] = bytes_written(world);
  }
  CHECK(written[1] < written[0]);
}

TEST(low_latency_combine_send_logfmt_units_of_512) {
  WorldShape shape = shape_of({0, 1}, 1536);
  shape.shuffle_seed = 9;
  LowLatencyCase c;
  c.num_experts = 4;
  c.logfmt = true;
  c.shape.grid = 2;
  low_latency_rounds(shape, c, 4);
}

TEST(low_latency_combine_send_after_a_failure_does_nothing) {
  // The dispatch before it has failed, so the layout it would read is nonsense.
  WorldShape shape = shape_of({0, 0, 1}, 64);
  shape.timeout_ns = 100'000'000;
  World world(shape);
  LowLatencyCase c;
  c.num_experts = 6;
  world.run({0}, [&](u32 me) {
    LowLatencyRank rank(world, me, c);
    const TokenInput in = low_latency_input(world, c, 1, me);
    Received got(world, c);
    rank.dispatch_send(in);
    rank.dispatch_recv(&got);
    CHECK(world.fault(0).phase == WaitPhase::kDispatchReceive);
    const Poisoned<u16> x(u64{c.num_experts} * shape.max_tokens * shape.hidden);
    rank.combine_send(got, x.data());
  });
  CHECK(world.fault(0).phase == WaitPhase::kDispatchReceive);
  CHECK_EQ(world.word(world.data(1), world.context(0).signals.flag(Phase::kCombine, 0)), 0u);
}

TEST(low_latency_combine_send_failure_publishes_nothing) {
  // The ranks dispatch once and rank 0 combines it three times; rank 1 never reads what the first two brought.
  for (const bool remote : {false, true}) {
    const WorldShape shape = shape_of({0, remote ? 1u : 0u}, 64);
    World world(shape);
    LowLatencyCase c;
    c.num_experts = 4;
    world.run([&](u32 me) {
      LowLatencyRank rank(world, me, c);
      const TokenInput in = low_latency_input(world, c, 0, me);
      Received got(world, c);
      rank.dispatch_send(in);
      rank.dispatch_recv(&got);
      check_no_fault(world, me, "dispatch");
      const Poisoned<u16> x(u64{c.num_experts} * shape.max_tokens * shape.hidden);
      for (u32 i = 0; me == 0 && i < 3; ++i) {
        if (i == 2) world.set_timeout(0, 100'000'000);
        rank.combine_send(got, x.data());
      }
    });
    const Fault f = world.fault(0);
    CHECK(f.kind == FaultKind::kTimeout && f.phase == WaitPhase::kCombineSend);
    CHECK_EQ(f.peer, 1u);
    while (!world.rings_idle(0)) {}
    const RankContext& c0 = world.context(0);
    CHECK_EQ(remote ? world.word(world.control(1), c0.control_layout.flag(Phase::kCombine, 0))
                    : world.word(world.data(1), c0.signals.flag(Phase::kCombine, 0)),
             2u);
  }
}
