// Which call a rank is in: a routing of another exchange is refused by all, a missing rank is named, and nothing that was
// written for another shape is read.
#include "kernels/throughput/calls.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

const std::vector<std::vector<u32>> kWorlds = {{0, 0}, {0, 1}, {0, 0, 0}, {0, 0, 1}, {0, 1, 1, 2, 2}};

using Received = ThroughputRank::Received;

// This rank's combine of what it took, all rows zero.
void combine(World& world, ThroughputRank& rank, const ThroughputCase& c, const RoundPlan& plan, u32 me,
             const Received& taken) {
  const RankInput in = throughput_input(world, c, 0, me);
  const u64 rows = taken.routing.recv_total[0];
  const Poisoned<u16> x = Poisoned<u16>(rows * plan.combine_hidden).zeroed();
  const Poisoned<float> weights = Poisoned<float>(rows * plan.combine_topk).zeroed();
  Poisoned<u16> out(u64{in.num_tokens} * plan.combine_hidden);
  Poisoned<float> out_weights(u64{in.num_tokens} * plan.combine_topk);
  rank.combine(plan, in.num_tokens, taken.routing,
               {x.data(), plan.combine_topk != 0 ? weights.data() : nullptr, taken.rows.src_idx.data(), nullptr,
                nullptr, out.data(), out_weights.data()});
}

}  // namespace

TEST(throughput_identify_refuses_a_routing_of_another_exchange) {
  for (const auto& node_of : kWorlds)
    for (const bool rows_again : {false, true}) {
      WorldShape shape;
      shape.node_of = node_of;
      shape.unit_bytes = 4096;
      World world(shape);
      ThroughputCase c;
      c.num_experts = 2 * shape.num_ranks();
      const u32 odd = shape.num_ranks() - 1;
      world.run([&](u32 me) {
        const RoundPlan plan = round_plan(world, c, 0);
        ThroughputRank rank(world, me, c);
        const Received first = rank.receive(plan, throughput_input(world, c, 0, me));
        const Received second = rank.receive(plan, throughput_input(world, c, 0, me));
        const Received& taken = me == odd ? first : second;
        if (!rows_again) return combine(world, rank, c, plan, me, taken);
        const RankInput in = throughput_input(world, c, 0, me);
        Dispatched got(taken.routing.recv_total[0], plan.hidden, plan.scale_words, 0);
        rank.dispatch(plan, in, 0, taken.routing, &got, false);
        CHECK(got.x.untouched(0));
      });
      for (u32 r = 0; r < shape.num_ranks(); ++r) {
        const Fault f = world.fault(r);
        CHECK(f.kind == FaultKind::kMismatch);
        CHECK_EQ(f.detail.word, DetailWord(MismatchField::kOrigin).word);
        if (r != odd) CHECK_EQ(f.peer, odd);
        CHECK_EQ(f.expected, r == odd ? 1u : 2u);
        CHECK_EQ(f.seen, r == odd ? 2u : 1u);
      }
    }
}

TEST(throughput_identify_refuses_rows_of_another_size) {  // whose place in the rings the others would get wrong
  for (const auto& node_of : kWorlds) {
    WorldShape shape;
    shape.node_of = node_of;
    shape.unit_bytes = 4096;
    World world(shape);
    ThroughputCase c;
    c.num_experts = 2 * shape.num_ranks();
    world.run([&](u32 me) {
      RoundPlan plan = round_plan(world, c, 0);
      ThroughputRank rank(world, me, c);
      const Received taken = rank.receive(plan, throughput_input(world, c, 0, me));
      plan.combine_hidden = me == 0 ? 16 : 8;
      plan.combine_topk = 0;
      combine(world, rank, c, plan, me, taken);
    });
    for (u32 r = 0; r < shape.num_ranks(); ++r) {
      CHECK(world.fault(r).kind == FaultKind::kMismatch);
      CHECK_EQ(world.fault(r).detail.word, DetailWord(MismatchField::kRowBytes).word);
      CHECK_EQ(world.fault(r).expected, r == 0 ? 32u : 16u);
    }
  }
}

TEST(throughput_identify_names_a_rank_that_does_not_come) {
  for (const auto& node_of : kWorlds) {
    WorldShape shape;
    shape.node_of = node_of;
    shape.unit_bytes = 4096;
    World world(shape);
    ThroughputCase c;
    c.num_experts = 2 * shape.num_ranks();
    const u32 missing = shape.num_ranks() - 1;
    world.run([&](u32 me) {
      RoundPlan plan = round_plan(world, c, 0);
      ThroughputRank rank(world, me, c);
      const Received taken = rank.receive(plan, throughput_input(world, c, 0, me));
      world.set_timeout(me, 700'000'000);  // not of the dispatch too, for which all come
      if (me != missing) combine(world, rank, c, plan, me, taken);
    });
    for (u32 r = 0; r < missing; ++r) {
      CHECK(world.fault(r).kind == FaultKind::kTimeout);
      CHECK_EQ(world.fault(r).peer, missing);
    }
  }
}
