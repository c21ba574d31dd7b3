// Low-latency dispatch, sending half: staging in every format, runs of rows with holes, rings and windows that are
// always full, and that a launch that fails publishes nothing.
#include "kernels/low_latency/calls.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

WorldShape shape_of(std::vector<u32> node_of, u32 max_tokens, u32 hidden) {
  WorldShape shape;
  shape.node_of = std::move(node_of);
  shape.max_tokens = max_tokens;
  shape.hidden = hidden;
  shape.max_topk = 5;
  return shape;
}

}  // namespace

TEST(low_latency_dispatch_send_stages_every_format) {
  for (const u32 hidden : {128u, 640u, 1152u})
    for (const RowFormat format : {RowFormat::kBf16, RowFormat::kFp8, RowFormat::kFp8Ue8m0, RowFormat::kNvfp4})
      for (const bool round_scale : {false, true}) {
        WorldShape shape = shape_of({0, 0, 1}, 9, hidden);
        shape.shuffle_seed = hidden + round_scale;
        LowLatencyCase c;
        c.num_experts = 9;
        c.seed = hidden;
        c.format = format;
        c.round_scale = round_scale;
        low_latency_rounds(shape, c, 3);
      }
}

TEST(low_latency_dispatch_send_nvfp4_sends_less) {  // quantised where the row is, so that fewest bytes cross
  u64 written[3] = {0, 0, 0};
  for (const RowFormat format : {RowFormat::kBf16, RowFormat::kFp8, RowFormat::kNvfp4}) {
    WorldShape shape = shape_of({0, 1, 1}, 24, 512);
    World world(shape);
    LowLatencyCase c;
    c.num_experts = 6;
    c.format = format;
    c.global_scale = 2688.0f;
    c.steady = true;
    world.run([&](u32 me) {
      LowLatencyRank rank(world, me, c);
      const TokenInput in = low_latency_input(world, c, 0, me);
      Received got(world, c);
      rank.dispatch_send(in);
      rank.dispatch_recv(&got);
      check_no_fault(world, me, "dispatch");
      check_received(world, c, 0, me, got);
    });
    u64& sum = written[format == RowFormat::kBf16 ? 0 : format == RowFormat::kFp8 ? 1 : 2];
    for (u32 r = 0; r < 3; ++r)
      for (const WorkerCounters& w : world.worker_counters(r)) sum += __atomic_load_n(&w.write_bytes, __ATOMIC_RELAXED);
  }
  // A row is 288, 528 and 1,024 bytes; routing blocks and headers come on top.
  CHECK(written[2] > 0 && 10 * written[2] < 6 * written[1] && 10 * written[1] < 6 * written[0]);
}

TEST(low_latency_dispatch_send_takes_any_hidden) {  // bf16 rows are any multiple of 8 channels
  for (const u32 hidden : {8u, 24u, 200u}) {
    LowLatencyCase c;
    c.num_experts = 6;
    low_latency_rounds(shape_of({0, 1, 1}, 7, hidden), c, 3);
  }
}

TEST(low_latency_dispatch_send_runs_through_full_rings) {
  WorldShape shape = shape_of({0, 1, 2}, 40, 64);
  shape.ring_capacity = 2;
  shape.max_in_flight = 1;
  u64 seed = 0;
  for (const u32 batch : {1u, 3u, simt::kWarp})
    for (const u32 grid : {1u, 3u}) {
      LowLatencyCase c;
      c.seed = ++seed;
      c.num_experts = 12;
      c.batch = batch;
      c.shape = LaunchShape{grid, 1 + static_cast<u32>(seed % 3), 1, seed};
      shape.shuffle_seed = seed % 2 ? seed : 0;
      low_latency_rounds(shape, c, 4);
    }
}

TEST(low_latency_dispatch_send_one_write_a_run) {  // not one a row: neighbours that go to a node leave together
  for (const bool gpu : {false, true}) {  // whoever stages them
    const WorldShape shape = shape_of({0, 1}, 32, 64);
    World world(shape);
    LowLatencyCase c;
    c.num_experts = 2;
    c.batch = simt::kWarp;
    c.gpu = gpu;
    c.shape = gpu ? LaunchShape{3, 4, 1, 5} : LaunchShape{1, 1, 1, 0};
    TokenInput in;
    in.num_tokens = 32;
    in.topk = 1;
    in.topk_idx.assign(32, 1);
    in.topk_idx[10] = 0;  // the one hole
    in.x.assign(32 * 64, 0x3f80);
    TokenInput none;
    none.topk = 1;
    world.run([&](u32 me) {
      LowLatencyRank rank(world, me, c);
      Received got(world, c);
      rank.dispatch_send(me == 0 ? in : none);
      rank.dispatch_recv(&got);
      check_no_fault(world, me, "dispatch");
      CHECK_EQ(got.count[0], me == 0 ? 1 : 31);
    });
    while (!world.rings_idle(0)) {}
    const u64 runs = simt::kWarp == 1 ? 31 : 2;  // a batch has a lane a token
    CHECK_EQ(world.context(0).rings[0].head[0], runs + 2);  // and the routing block, the count
  }
}

TEST(low_latency_dispatch_send_failure_publishes_nothing) {
  // Rank 1 never reads, so the third dispatch of rank 0 cannot reuse its set: nobody may take the old rows for new.
  for (const bool remote : {false, true})
    for (const u32 grid : {1u, 2u}) {
      WorldShape shape = shape_of({0, remote ? 1u : 0u}, 4, 64);
      shape.timeout_ns = 200'000'000;
      World world(shape);
      LowLatencyCase c;
      c.num_experts = 4;
      c.shape.grid = grid;
      world.run({0}, [&](u32 me) {
        LowLatencyRank rank(world, me, c);
        for (u32 i = 0; i < 3; ++i) {
          const TokenInput in = low_latency_input(world, c, i, 0);
          rank.dispatch_send(in);
        }
      });
      const Fault f = world.fault(0);
      CHECK(f.kind == FaultKind::kTimeout && f.phase == WaitPhase::kDispatchSend);
      CHECK_EQ(f.peer, 1u);
      CHECK_EQ(f.expected, 1u);
      CHECK_EQ(f.seen, 0u);
      const RankContext& mine = world.context(0);
      CHECK_EQ(world.word(world.data(0), mine.signals.flag(Phase::kDispatch, 0)), 2u);
      if (!remote) continue;
      while (!world.rings_idle(0)) {}
      CHECK_EQ(world.word(world.control(1), mine.control_layout.flag(Phase::kDispatch, 0)), 2u);
    }
}
