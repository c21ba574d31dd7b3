// Throughput dispatch: rows, scales, ids and weights through rings of two chunks, cached and padded calls, all
// topologies, and what happens when a rank stops reading or the output is too small.
#include <algorithm>

#include "kernels/throughput/calls.h"
#include "kernels/throughput/common.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

const std::vector<std::vector<u32>> kWorlds = {{0}, {0, 0}, {0, 1}, {0, 0, 0}, {0, 1, 2}, {0, 0, 1}, {0, 1, 1, 2, 2}};

}  // namespace

TEST(throughput_dispatch_row_exact_in_every_topology) {
  u64 seed = 240;
  for (const auto& node_of : kWorlds) {
    WorldShape shape;
    shape.node_of = node_of;
    shape.unit_bytes = 1024 + 512 * (seed % 5);  // two chunks of a few rows: wraps many times a call
    shape.shuffle_seed = ++seed % 2 ? seed : 0;
    ThroughputCase c;
    c.seed = seed;
    c.num_experts = 3 * shape.num_ranks();
    c.warps = 1 + static_cast<u32>(seed % 3);
    c.threads = 1 + static_cast<u32>(seed % 2);
    throughput_rounds(shape, c, 12);
  }
}

TEST(throughput_dispatch_wraps_with_tiny_rings) {
  for (const u64 seed : {0ull, 31ull}) {
    WorldShape shape;
    shape.node_of = {0, 0, 1};
    shape.unit_bytes = 512;
    shape.ring_capacity = 2;
    shape.max_in_flight = 1;
    shape.shuffle_seed = seed;
    ThroughputCase c;
    c.seed = 250 + seed;
    c.num_experts = 6;
    c.max_tokens = 60;
    c.max_hidden = 32;
    c.same_geometry = true;
    c.max_channels = 1;
    throughput_rounds(shape, c, 6);
  }
}

TEST(throughput_dispatch_positions_go_past_their_field) {
  // Chunk numbers never reset, and the wire carries ten bits of them: more than 1024 chunks on one stream.
  WorldShape shape;
  shape.node_of = {0, 1};
  shape.unit_bytes = 512;
  shape.shuffle_seed = 77;
  ThroughputCase c;
  c.seed = 13;
  c.num_experts = 2;
  c.max_tokens = 300;
  c.max_hidden = 8;
  c.max_channels = 1;
  c.same_geometry = true;
  World world(shape);
  world.run([&](u32 me) {
    ThroughputRank rank(world, me, c);
    for (u64 round = 0; round < 24; ++round) throughput_round(world, rank, c, round, me);
  });
  CHECK(world.word(world.control(0), world.context(0).control_layout.tail(Direction::kDispatch, 1, 0)) > 1024 ||
        world.word(world.control(1), world.context(1).control_layout.tail(Direction::kDispatch, 0, 0)) > 1024);
}

TEST(throughput_dispatch_refuses_an_output_that_is_too_small) {
  WorldShape shape;
  shape.unit_bytes = 2048;
  World world(shape);
  ThroughputCase c;
  c.num_experts = 2;
  world.run([&](u32 me) {
    u64 round = 0;
    while (taken_rows(world, c, round, me).size() < 4) ++round;
    const RoundPlan plan = round_plan(world, c, round);
    const RankInput in = throughput_input(world, c, round, me);
    Routing routing(world, c, in, plan.channels);
    ThroughputRank rank(world, me, c);
    rank.layout(in, &routing);
    rank.counts(plan, in, &routing);
    Dispatched got(3, plan.hidden, plan.scale_words, plan.topk);
    rank.dispatch(plan, in, plan.topk, routing, &got, true);
    CHECK(got.x.untouched(0));
    const Fault f = world.fault(0);
    CHECK(f.kind == FaultKind::kMismatch && f.phase == WaitPhase::kDispatchReceive);
    CHECK_EQ(f.detail.word, DetailWord(MismatchField::kReceivedRows).word);
    CHECK_EQ(f.expected, 3u);
    CHECK_EQ(f.seen, routing.recv_total[0]);
  });
}

TEST(throughput_dispatch_names_a_reader_that_stopped) {
  // Rank 1 exchanges counts and never reads: the ring of two chunks stays full.
  for (const bool remote : {false, true}) {
    WorldShape shape;
    shape.node_of = {0, remote ? 1u : 0u};
    shape.unit_bytes = 512;
    World world(shape);
    ThroughputCase c;
    c.seed = 6;
    c.num_experts = 2;
    c.max_tokens = 64;
    c.max_channels = 1;
    c.max_hidden = 64;
    u64 round = 0;
    while (taken_rows(world, c, round, 1).size() < 60) ++round;  // nearly all go to rank 1
    world.run([&](u32 me) {
      const RoundPlan plan = round_plan(world, c, round);
      const RankInput in = throughput_input(world, c, round, me);
      Routing routing(world, c, in, plan.channels);
      ThroughputRank rank(world, me, c);
      rank.layout(in, &routing);
      rank.counts(plan, in, &routing);
      check_no_fault(world, me, "counts");
      if (me == 1) return;
      world.set_timeout(0, 100'000'000);
      Dispatched got(routing.recv_total[0], plan.hidden, plan.scale_words, plan.topk);
      rank.dispatch(plan, in, plan.topk, routing, &got, false);
    });
    const Fault f = world.fault(0);
    CHECK(f.kind == FaultKind::kTimeout);
    CHECK(f.phase == WaitPhase::kDispatchSend || f.phase == WaitPhase::kDispatchReceive);
    CHECK(remote ? f.peer == 1 : f.peer <= 1);
    CHECK_EQ(f.detail.word, DetailWord(0u).word);
  }
}

// Tables and headers that disagree, as a handle that was written to or an overwritten word makes them: the call ends with
// a fault, and nothing is written beyond the rows that were announced.
TEST(throughput_dispatch_refuses_rows_that_were_not_announced) {
  for (u32 what = 0; what < 4; ++what) {
    WorldShape shape;
    shape.unit_bytes = 2048;
    shape.timeout_ns = 100'000'000;
    World world(shape);
    ThroughputCase c;
    c.num_experts = 2;
    c.max_channels = 1;
    world.run([&](u32 me) {
      u64 round = 0;
      while (throughput_input(world, c, round, me).num_tokens <= taken_rows(world, c, round, me).size() ||
             taken_rows(world, c, round, me).size() < 4)
        ++round;
      const RoundPlan plan = round_plan(world, c, round);
      const RankInput in = throughput_input(world, c, round, me);
      const u32 rows = static_cast<u32>(taken_rows(world, c, round, me).size());
      Routing routing(world, c, in, plan.channels);
      ThroughputRank rank(world, me, c);
      rank.layout(in, &routing);
      rank.counts(plan, in, &routing);
      Dispatched got(routing.recv_total[0], plan.hidden, plan.scale_words, plan.topk);
      u8* const takes = routing.is_token_in_rank.data();
      if (what == 0) takes[std::find(takes, takes + in.num_tokens, 0) - takes] = 1;  // a row too many
      if (what == 1) takes[std::find(takes, takes + in.num_tokens, 1) - takes] = 0;  // too few
      if (what == 2)
        routing.recv_tokens[0] = routing.recv_total[0] = got.capacity = rows - 1;  // its reader knows of fewer
      if (what == 3) routing.recv_tokens[0] = rows + 1;
      rank.dispatch(plan, in, plan.topk, routing, &got, false);
      const Fault f = world.fault(0);
      CHECK(f.kind == FaultKind::kBadArrival);
      CHECK(f.phase == (what < 2 ? WaitPhase::kDispatchSend : WaitPhase::kDispatchReceive));
      CHECK_EQ(f.peer, 0u);
      CHECK_EQ(f.expected, what < 2 ? rows : what == 2 ? rows - 1 : rows + 1);
      if (what == 2) CHECK(got.x.untouched(u64{rows - 1} * plan.hidden));
    });
  }
}

TEST(throughput_dispatch_refuses_a_tail_beyond_the_ring_and_a_row_of_another_lap) {
  for (const bool tail : {true, false}) {
    WorldShape shape;
    shape.node_of = {0, 0};
    shape.unit_bytes = 4096;
    World world(shape);
    ThroughputCase c;
    c.num_experts = 2;
    c.max_channels = 1;
    c.max_tokens = 4;  // the ring holds them all: rank 0 ends alone
    u64 round = 0;
    const auto row_of_0 = [&] {
      const std::vector<Taken> taken = taken_rows(world, c, round, 1);
      return !taken.empty() && taken[0].source == 0;
    };
    while (!row_of_0() || throughput_input(world, c, round, 1).num_tokens != 0) ++round;
    const RoundPlan plan = round_plan(world, c, round);
    std::vector<std::unique_ptr<Routing>> routings(2);
    std::vector<std::unique_ptr<ThroughputRank>> ranks(2);
    world.run([&](u32 me) {
      const RankInput in = throughput_input(world, c, round, me);
      routings[me] = std::make_unique<Routing>(world, c, in, plan.channels);
      ranks[me] = std::make_unique<ThroughputRank>(world, me, c);
      ranks[me]->layout(in, routings[me].get());
      ranks[me]->counts(plan, in, routings[me].get());
    });
    for (const u32 me : {0u, 1u})
      world.run({me}, [&](u32) {
        Dispatched got(routings[me]->recv_total[0], plan.hidden, plan.scale_words, plan.topk);
        const StreamAddress s = dispatch_stream(world.context(me), world.throughput, 0, 0);
        if (me == 1 && tail) *const_cast<u64*>(s.tail) += 1000;
        if (me == 1 && !tail) reinterpret_cast<RowHeader*>(const_cast<u8*>(s.unit))->seal ^= 1u << 17;  // two laps ago
        const RankInput in = throughput_input(world, c, round, me);
        ranks[me]->dispatch(plan, in, plan.topk, *routings[me], &got, false);
      });
    CHECK(world.fault(0).kind == FaultKind::kNone);
    const Fault f = world.fault(1);
    CHECK(f.kind == FaultKind::kBadArrival && f.phase == WaitPhase::kDispatchReceive);
    CHECK_EQ(f.peer, 0u);
  }
}
