// What a rank sums for itself: a row that is not among its tokens ends the call.
#include "kernels/throughput/calls.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

// A handle whose source tokens were written to: no sum may lack a row without an error.
TEST(throughput_own_sums_refuses_a_handle_that_was_written_to) {
  WorldShape shape;
  shape.unit_bytes = 4096;
  World world(shape);
  ThroughputCase c;
  c.num_experts = 1;
  world.run([&](u32 me) {
    u64 round = 0;
    while (taken_rows(world, c, round, me).size() < 3) ++round;
    const RoundPlan plan = round_plan(world, c, round);
    const RankInput in = throughput_input(world, c, round, me);
    Routing routing(world, c, in, plan.channels);
    ThroughputRank rank(world, me, c);
    rank.layout(in, &routing);
    rank.counts(plan, in, &routing);
    Dispatched got(routing.recv_total[0], plan.hidden, plan.scale_words, plan.topk);
    rank.dispatch(plan, in, plan.topk, routing, &got, false);
    check_no_fault(world, me, "dispatch");
    const CombineInput mine(world, c, round, me);
    Poisoned<u16> out(u64{in.num_tokens} * plan.combine_hidden);
    Poisoned<float> weights(u64{in.num_tokens} * plan.combine_topk);
    const i32 last = got.src_idx[got.capacity - 1];
    got.src_idx[got.capacity - 1] = 70000;
    rank.combine(
        plan, in.num_tokens, routing,
        {mine.x.data(), mine.weights.data(), got.src_idx.data(), nullptr, nullptr, out.data(), weights.data()});
    const Fault f = world.fault(0);
    CHECK(f.kind == FaultKind::kBadArrival && f.phase == WaitPhase::kCombineReceive);
    CHECK_EQ(f.peer, 0u);
    CHECK_EQ(f.expected, static_cast<u64>(last));
    CHECK_EQ(f.seen, 70000u);
  });
}
