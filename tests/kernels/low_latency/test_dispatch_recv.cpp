// Low-latency dispatch, receiving half: order, counts and ranges, more local experts than a warp has lanes, and every
// way in which a source may fail to come.
#include <sched.h>

#include "kernels/device/match.h"
#include "kernels/layout/access.h"
#include "kernels/low_latency/calls.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

WorldShape shape_of(std::vector<u32> node_of) {
  WorldShape shape;
  shape.node_of = std::move(node_of);
  shape.max_tokens = 10;
  shape.hidden = 128;
  shape.max_topk = 6;
  return shape;
}

// All but the last rank dispatch and receive one round; the last is not there.
void without_last(World& world, const LowLatencyCase& c, std::vector<Received>* got) {
  std::vector<u32> present;
  std::vector<std::unique_ptr<LowLatencyRank>> ranks;
  for (u32 r = 0; r + 1 < world.num_ranks(); ++r) {
    present.push_back(r);
    ranks.push_back(std::make_unique<LowLatencyRank>(world, r, c));
    got->emplace_back(world, c);
  }
  world.run(present, [&](u32 me) {
    const TokenInput in = low_latency_input(world, c, 0, me);
    ranks[me]->dispatch_send(in);
  });
  world.run(present, [&](u32 me) {
    for (const u32 source : present)  // all that will ever come is there
      while (simt::ld_acquire_sys(arrival_flag(world.context(me), Phase::kDispatch, source)) == 0) sched_yield();
    world.set_timeout(me, 500'000'000);  // a block that the machine holds up so long is outwaited by the others
    ranks[me]->dispatch_recv(&(*got)[me]);
  });
}

}  // namespace

TEST(low_latency_dispatch_recv_orders_rows_in_every_topology) {
  const std::vector<std::vector<u32>> worlds = {{0},       {0, 0},          {0, 1},         {0, 0, 0},
                                                {0, 1, 0}, {0, 0, 1, 2, 2}, {0, 0, 0, 0, 1}};
  u64 seed = 40;
  for (const auto& node_of : worlds) {
    WorldShape shape = shape_of(node_of);
    shape.shuffle_seed = ++seed % 2 ? seed : 0;
    LowLatencyCase c;
    c.seed = seed;
    c.num_experts = 3 * shape.num_ranks();
    c.shape = LaunchShape{1 + static_cast<u32>(seed % 3), 2, 1 + static_cast<u32>(seed % 2), seed};
    low_latency_rounds(shape, c, 7);  // every pattern of low_latency_input
  }
}

// As on a GPU: the warps of a block read parts of a source's ids, for few experts or for more than a warp has lanes.
TEST(low_latency_dispatch_recv_reads_a_list_with_all_warps_of_a_block) {
  u64 seed = 60;
  for (const auto& node_of : {std::vector<u32>{0}, {0, 0}, {0, 1, 0}})
    for (const u32 experts : {3, 70}) {
      WorldShape shape = shape_of(node_of);
      shape.max_tokens = 40;
      LowLatencyCase c;
      c.seed = ++seed;
      c.gpu = true;
      c.num_experts = experts * shape.num_ranks();
      c.shape = LaunchShape{2, 1 + static_cast<u32>(seed % 4), 1, seed};
      low_latency_rounds(shape, c, 4);
    }
}

TEST(low_latency_dispatch_recv_orders_rows_with_cells_a_rank) {
  u64 seed = 60;
  for (const auto& node_of : std::vector<std::vector<u32>>{{0, 1, 0}, {0, 0, 1, 2, 2}, {0, 0, 0, 1}}) {
    WorldShape shape = shape_of(node_of);
    shape.apart = shape.shrink = true;
    shape.shuffle_seed = ++seed;
    LowLatencyCase c;
    c.seed = seed;
    c.num_experts = 3 * shape.num_ranks();
    low_latency_rounds(shape, c, 7);
  }
}

TEST(low_latency_dispatch_recv_counts_more_experts_than_a_search) {
  for (const u32 local : {kMatchWidth - 1, kMatchWidth, 2 * kMatchWidth + 3}) {
    LowLatencyCase c;
    c.num_experts = 2 * local;
    c.shape.grid = 2;
    low_latency_rounds(shape_of({0, 1}), c, 3);
  }
}

TEST(low_latency_dispatch_recv_adds_up_statistics) {
  const WorldShape shape = shape_of({0, 0, 1});
  World world(shape);
  LowLatencyCase c;
  c.num_experts = 6;
  world.run([&](u32 me) {
    LowLatencyRank rank(world, me, c);
    std::vector<i64> rows(2, 0);
    for (u64 round = 0; round < 5; ++round) {
      Received got(world, c);
      const TokenInput in = low_latency_input(world, c, round, me);
      rank.dispatch_send(in);
      rank.dispatch_recv(&got);
      check_no_fault(world, me, "dispatch");
      check_received(world, c, round, me, got);
      for (u32 e = 0; e < 2; ++e) CHECK_EQ(i64{rank.cumulative_stats[e]}, rows[e] += got.count[e]);
    }
    CHECK_EQ(rank.wait_stats[me], 0);
    for (u32 r = 0; r < 3; ++r) CHECK(r == me || rank.wait_stats[r] > 0);
  });
}

TEST(low_latency_dispatch_recv_names_a_missing_rank) {
  for (const auto& node_of : std::vector<std::vector<u32>>{{0, 0, 0}, {0, 1, 1}, {0, 0, 1}})
    for (const u32 grid : {1u, 3u}) {
      WorldShape shape = shape_of(node_of);
      World world(shape);
      LowLatencyCase c;
      c.num_experts = 6;
      c.shape.grid = grid;
      std::vector<Received> got;
      without_last(world, c, &got);
      for (u32 r = 0; r < 2; ++r) {
        const Fault f = world.fault(r);
        CHECK(f.kind == FaultKind::kTimeout && f.phase == WaitPhase::kDispatchReceive);
        CHECK_EQ(f.peer, 2u);
        CHECK_EQ(f.expected, 1u);
        CHECK_EQ(f.seen, 0u);
        CHECK(got[r].x.untouched(0) && got[r].src_info.untouched(0) && got[r].count.untouched(0));
        const u32 reader = (r + 1) % 2;  // a failed launch does not say that it has read anything
        if (node_of[r] == node_of[reader])
          CHECK_EQ(world.word(world.data(reader), world.context(r).signals.consumed(Phase::kDispatch, r)), 0u);
      }
    }
}

TEST(low_latency_dispatch_recv_masks_a_missing_rank) {
  for (const auto& node_of : std::vector<std::vector<u32>>{{0, 0, 0}, {0, 1, 2}})
    for (const u32 grid : {1u, 2u}) {
      WorldShape shape = shape_of(node_of);
      shape.shrink = true;
      World world(shape);
      LowLatencyCase c;
      c.num_experts = 6;
      c.shape.grid = grid;
      std::vector<Received> got;
      without_last(world, c, &got);
      for (u32 r = 0; r < 2; ++r) {
        check_no_fault(world, r, "dispatch without rank 2");
        CHECK_EQ(world.mask(r)[0] + world.mask(r)[1], 0u);
        CHECK_EQ(world.mask(r)[2], 1u);
        check_received(world, c, 0, r, got[r], {2});
      }
    }
}

TEST(low_latency_dispatch_recv_refuses_another_shape) {
  for (const bool remote : {false, true})
    for (const char* differs : {"format", "hidden", "experts"}) {
      World world(shape_of({0, remote ? 1u : 0u}));
      LowLatencyCase c;
      c.num_experts = 4;
      world.run([&](u32 me) {
        LowLatencyCase mine = c;
        if (me == 1 && *differs == 'f') mine.format = RowFormat::kFp8;
        if (me == 1 && *differs == 'e') mine.num_experts = 8;
        LowLatencyRank rank(world, me, mine);
        if (me == 1 && *differs == 'h') rank.layout.hidden = 64;
        TokenInput in = low_latency_input(world, c, 0, me);
        Received got(world, c);
        rank.dispatch_send(in);
        if (me == 0) rank.dispatch_recv(&got);
        CHECK(me == 1 || (got.x.untouched(0) && got.src_info.untouched(0)));
      });
      const Fault f = world.fault(0);
      CHECK(f.kind == FaultKind::kMismatch && f.phase == WaitPhase::kDispatchReceive);
      CHECK_EQ(f.peer, 1u);
      CHECK_EQ(f.expected, *differs == 'h' ? 128u : *differs == 'e' ? 4u : static_cast<u32>(RowFormat::kBf16));
      const MismatchField what = *differs == 'e'   ? MismatchField::kExperts
                                 : *differs == 'h' ? MismatchField::kHidden
                                                   : MismatchField::kRowFormat;
      CHECK_EQ(f.detail.word, DetailWord(what).word);
      CHECK(f.seen != f.expected);
    }
}

TEST(low_latency_dispatch_recv_nvfp4_scales_over_several_tiles) {  // more than 128 rows an expert, uneven last tile
  for (const u32 hidden : {64u, 320u}) {
    WorldShape shape;
    shape.node_of = {0, 0, 1};
    shape.max_tokens = 67;
    shape.hidden = hidden;
    shape.max_topk = 3;
    shape.shuffle_seed = hidden;
    LowLatencyCase c;
    c.num_experts = 3;
    c.format = RowFormat::kNvfp4;
    c.global_scale = hidden == 64 ? 2688.0f : 0.75f;  // the other one leaves many scales subnormal
    c.shape = LaunchShape{2, 2, 1, hidden};
    low_latency_rounds(shape, c, 7);
  }
}

// What stands in a routing block is bounded before it is used: sizes, and how often an expert may be named.
TEST(low_latency_dispatch_recv_refuses_a_block_that_cannot_be) {
  for (u32 what = 0; what < 3; ++what) {
    World world(shape_of({0}));
    LowLatencyCase c;
    c.num_experts = 3;
    world.run([&](u32 me) {
      LowLatencyRank rank(world, me, c);
      TokenInput in = low_latency_input(world, c, 0, me);
      in.num_tokens = 2;
      in.topk = 2;
      in.topk_idx = {0, 1, 2, 0};
      in.x.resize(2ull * world.shape().hidden);
      rank.dispatch_send(in);
      auto* const header = reinterpret_cast<RoutingHeader*>(world.data(0) + world.low_latency.staged_routing(1));
      if (what == 0) header->num_tokens = 0x40000000;
      if (what == 1) header->topk = 0xffff;
      if (what == 2) std::fill_n(reinterpret_cast<short*>(header + 1), 4, short{1});  // more than there are tokens
      Received got(world, c);
      rank.dispatch_recv(&got);
      CHECK(got.x.untouched(0));
      const Fault f = world.fault(0);
      CHECK(f.kind == FaultKind::kBadArrival && f.phase == WaitPhase::kDispatchReceive);
      CHECK_EQ(f.peer, 0u);
      CHECK_EQ(f.seen, what == 0 ? 0x40000000u : what == 1 ? 0xffffu : 4u);
      CHECK_EQ(f.expected, what == 0 ? world.shape().max_tokens : what == 1 ? world.shape().max_topk : 2u);
    });
  }
}

TEST(low_latency_dispatch_recv_refuses_a_flag_of_the_call_after_next) {
  World world(shape_of({0, 0}));
  LowLatencyCase c;
  c.num_experts = 2;
  world.run({0}, [&](u32 me) {
    LowLatencyRank rank(world, me, c);
    rank.dispatch_send(low_latency_input(world, c, 0, me));
    *node_flag(world.context(0), Phase::kDispatch, 1, 1) = 3;
    Received got(world, c);
    rank.dispatch_recv(&got);
    const Fault f = world.fault(0);
    CHECK(f.kind == FaultKind::kBadArrival && f.phase == WaitPhase::kDispatchReceive);
    CHECK_EQ(f.peer, 1u);
    CHECK(f.expected == 2 && f.seen == 3);
  });
}
