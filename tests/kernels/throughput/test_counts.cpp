// The count exchange: tables of every topology, many calls in a row, and ranks that disagree or do not come.
#include "kernels/throughput/calls.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

WorldShape shape_of(std::vector<u32> node_of) {
  WorldShape shape;
  shape.node_of = std::move(node_of);
  shape.unit_bytes = 2048;
  return shape;
}

// One count exchange of rank `me` with this plan.
void exchange(World& world, const ThroughputCase& c, const RoundPlan& plan, u32 me, Routing* routing) {
  const RankInput in = throughput_input(world, c, 0, me);
  ThroughputRank rank(world, me, c);
  rank.layout(in, routing);
  rank.counts(plan, in, routing);
}

}  // namespace

TEST(throughput_counts_over_many_rounds) {
  u64 seed = 220;
  for (const auto& node_of : std::vector<std::vector<u32>>{{0}, {0, 0}, {0, 1}, {0, 0, 1}, {0, 1, 1, 2, 2}}) {
    WorldShape shape = shape_of(node_of);
    shape.shuffle_seed = ++seed;
    shape.ring_capacity = 2;
    World world(shape);
    ThroughputCase c;
    c.seed = seed;
    c.num_experts = 3 * world.num_ranks();
    c.max_channels = 4;
    c.warps = 1 + static_cast<u32>(seed % 3);
    world.run([&](u32 me) {
      ThroughputRank rank(world, me, c);
      for (u64 round = 0; round < 20; ++round) {
        const RoundPlan plan = round_plan(world, c, round);
        const RankInput in = throughput_input(world, c, round, me);
        Routing routing(world, c, in, plan.channels);
        rank.layout(in, &routing);
        rank.counts(plan, in, &routing);
        check_no_fault(world, me, "counts");
        check_counts(world, c, round, me, routing);
      }
    });
  }
}

TEST(throughput_counts_refuse_a_rank_that_speaks_of_another_call) {
  // What differs, and the number that the record's channel field gives it (uccl_ep/membership/fault_errors.py).
  struct Difference {
    MismatchField which;
    u32 mine, theirs;
    void (*change)(RoundPlan&);
  };
  const Difference differences[] = {
      {MismatchField::kTopk, 4, 3, [](RoundPlan& p) { p.topk = 3; }},
      {MismatchField::kRowBytes, 64, 128, [](RoundPlan& p) { p.hidden = 64; }},
      {MismatchField::kScaleBytes, 8, 12, [](RoundPlan& p) { p.scale_words = 3; }},
      {MismatchField::kChannels, 1, 2, [](RoundPlan& p) { p.channels = 2; }},
  };
  for (const bool remote : {false, true})
    for (const Difference& d : differences) {
      World world(shape_of({0, 0, remote ? 1u : 0u}));
      ThroughputCase c;
      c.num_experts = 6;
      world.run([&](u32 me) {
        RoundPlan plan = round_plan(world, c, 0);
        plan.channels = 1;
        plan.hidden = 32;
        plan.scale_words = 2;
        plan.topk = 4;
        if (me == 2) d.change(plan);
        Routing routing(world, c, throughput_input(world, c, 0, me), plan.channels);
        exchange(world, c, plan, me, &routing);
        CHECK(routing.recv_total.untouched(0));
      });
      const Fault f = world.fault(0);
      CHECK(f.kind == FaultKind::kMismatch && f.phase == WaitPhase::kCounts);
      CHECK_EQ(f.peer, 2u);
      CHECK_EQ(f.detail.word, DetailWord(d.which).word);
      CHECK_EQ(f.expected, d.mine);
      CHECK_EQ(f.seen, d.theirs);
      CHECK(world.fault(2).kind == FaultKind::kMismatch);
    }
}

TEST(throughput_counts_name_a_missing_rank_and_stop_what_follows) {
  for (const auto& node_of : std::vector<std::vector<u32>>{{0, 0, 0}, {0, 0, 1}, {0, 1, 1}}) {
    WorldShape shape = shape_of(node_of);
    shape.timeout_ns = 1'500'000'000;  // ranks 0 and 1 need each other within it
    World world(shape);
    ThroughputCase c;
    c.num_experts = 6;
    world.run({0, 1}, [&](u32 me) {
      RoundPlan plan = round_plan(world, c, 0);
      plan.topk = 4;
      const RankInput in = throughput_input(world, c, 0, me);
      Routing routing(world, c, in, plan.channels);
      ThroughputRank rank(world, me, c);
      rank.layout(in, &routing);
      rank.counts(plan, in, &routing);
      CHECK(routing.recv_total.untouched(0));
      // With num_worst_tokens these are queued behind it without anyone looking: they must not believe the tables.
      Dispatched got(32, plan.hidden, plan.scale_words, plan.topk);
      rank.dispatch(plan, in, plan.topk, routing, &got, true);
      CHECK(got.x.untouched(0) && got.src_idx.untouched(0) && got.topk_idx.untouched(0));
      Poisoned<u16> out(u64{in.num_tokens} * plan.combine_hidden);
      Poisoned<float> weights(u64{in.num_tokens} * plan.combine_topk);
      rank.combine(
          plan, in.num_tokens, routing,
          {got.x.data(), got.topk_weights.data(), got.src_idx.data(), nullptr, nullptr, out.data(), weights.data()});
      CHECK(out.untouched(0));
    });
    for (u32 me = 0; me < 2; ++me) {
      const Fault f = world.fault(me);
      CHECK(f.kind == FaultKind::kTimeout && f.phase == WaitPhase::kCounts);
      CHECK_EQ(f.peer, 2u);
      CHECK_EQ(f.expected, 1u);
      CHECK_EQ(f.seen, 0u);
    }
  }
}
