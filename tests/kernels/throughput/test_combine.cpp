// Throughput combine: sums, biases and weights to the bit on one node and on several, over rings of two chunks; and a
// rank that does not send its rows.
#include "kernels/throughput/calls.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

TEST(throughput_combine_sums_over_uneven_nodes) {
  u64 seed = 300;
  for (const auto& node_of :
       std::vector<std::vector<u32>>{{0, 0, 0, 1}, {0, 1, 1, 1}, {0, 0, 1, 2, 2}, {0, 1, 2, 0, 1}})
    for (const u32 warps : {1u, 4u}) {
      WorldShape shape;
      shape.node_of = node_of;
      shape.unit_bytes = 2048;
      shape.shuffle_seed = ++seed;
      if (!check::plays(seed)) continue;
      shape.num_rings = shape.num_workers = 1 + static_cast<u32>(seed % 2);
      ThroughputCase c;
      c.seed = seed;
      c.num_experts = 2 * shape.num_ranks();
      c.max_channels = 3;
      c.max_tokens = 20;
      c.warps = warps;
      throughput_rounds(shape, c, 8);
    }
}

TEST(throughput_combine_sums_over_cells_a_rank) {
  u64 seed = 330;
  for (const auto& node_of :
       std::vector<std::vector<u32>>{{0, 1}, {0, 0, 0, 1}, {0, 0, 1, 2, 2}, {0, 1, 2, 0, 1}, {0, 0, 0}}) {
    WorldShape shape;
    shape.node_of = node_of;
    shape.apart = shape.shrink = true;
    shape.unit_bytes = 2048;
    shape.shuffle_seed = ++seed;
    shape.num_rings = shape.num_workers = 1 + static_cast<u32>(seed % 2);
    ThroughputCase c;
    c.seed = seed;
    c.num_experts = 2 * shape.num_ranks();
    c.max_channels = 3;
    c.max_tokens = 20;
    throughput_rounds(shape, c, 8);
  }
}

TEST(throughput_combine_names_a_rank_that_sends_nothing) {
  for (const bool remote : {false, true}) {
    WorldShape shape;
    shape.node_of = {0, 0, remote ? 1u : 0u};
    shape.unit_bytes = 4096;
    shape.timeout_ns = 1'500'000'000;
    World world(shape);
    ThroughputCase c;
    c.seed = 3;
    c.num_experts = 3;
    u64 round = 0;
    const auto waited_for = [&] {  // rank 0 has a token at rank 2
      for (const Taken& t : taken_rows(world, c, round, 2))
        if (t.source == 0) return true;
      return false;
    };
    while (!waited_for()) ++round;
    world.run([&](u32 me) {
      const RoundPlan plan = round_plan(world, c, round);
      const RankInput in = throughput_input(world, c, round, me);
      Routing routing(world, c, in, plan.channels);
      ThroughputRank rank(world, me, c);
      rank.layout(in, &routing);
      rank.counts(plan, in, &routing);
      check_no_fault(world, me, "counts");
      Dispatched got(routing.recv_total[0], plan.hidden, plan.scale_words, plan.topk);
      rank.dispatch(plan, in, plan.topk, routing, &got, false);
      check_no_fault(world, me, "dispatch");
      if (me == 2) return;
      const CombineInput mine(world, c, round, me);
      Poisoned<u16> out(u64{in.num_tokens} * plan.combine_hidden);
      Poisoned<float> weights(u64{in.num_tokens} * plan.combine_topk);
      rank.combine(
          plan, in.num_tokens, routing,
          {mine.x.data(), mine.weights.data(), got.src_idx.data(), nullptr, nullptr, out.data(), weights.data()});
    });
    const Fault f = world.fault(0);
    CHECK(f.kind == FaultKind::kTimeout && f.phase == WaitPhase::kCombineReceive);
    CHECK_EQ(f.peer, 2u);
    CHECK_EQ(f.seen + 1, f.expected);
  }
}
