// Whole rounds: layout, counts, dispatch, sometimes a cached dispatch, combine.
#include <algorithm>

#include "kernels/throughput/calls.h"
#include "native/check.h"

namespace uccl::testing {

u64 throughput_round(World& world, ThroughputRank& rank, const ThroughputCase& c, u64 round, u32 me) {
  const RoundPlan plan = round_plan(world, c, round);
  const RankInput in = throughput_input(world, c, round, me);
  Routing routing(world, c, in, plan.channels);
  rank.layout(in, &routing);
  check_layout(world, c, round, me, routing);
  rank.counts(plan, in, &routing);
  check_no_fault(world, me, "counts");
  check_counts(world, c, round, me, routing);

  const u32 rows = routing.recv_total[0];
  Dispatched got(plan.worst ? world.num_ranks() * c.max_tokens : rows, plan.hidden, plan.scale_words, plan.topk);
  rank.dispatch(plan, in, plan.topk, routing, &got, plan.worst);
  check_no_fault(world, me, "dispatch");
  check_dispatched(world, c, round, me, got, plan.topk);
  if (plan.cached) {
    Dispatched again(rows, plan.hidden, plan.scale_words, 0);
    rank.dispatch(plan, in, 0, routing, &again, false);
    check_no_fault(world, me, "cached dispatch");
    check_dispatched(world, c, round, me, again, 0);
  }

  CombineInput mine(world, c, round, me);
  Poisoned<u16> out(u64{in.num_tokens} * plan.combine_hidden);
  Poisoned<float> weights(u64{in.num_tokens} * plan.combine_topk);
  rank.combine(plan, in.num_tokens, routing,
               {mine.x.data(), mine.weights.data(), got.src_idx.data(), plan.biases > 0 ? mine.bias[0].data() : nullptr,
                plan.biases > 1 ? mine.bias[1].data() : nullptr, out.data(), weights.data(),
                c.arenas && mix(c.seed ^ round << 16 ^ me) % 4 != 0});
  std::fill(mine.x.begin(), mine.x.end(), u16{0x7fc0});  // the caller's to write again: NaN
  check_no_fault(world, me, "combine");
  check_combined(world, c, round, me, out, weights);
  return u64{rows} * (plan.cached ? 2 : 1) + in.num_tokens;
}

u64 throughput_rounds(const WorldShape& shape, const ThroughputCase& c, u64 rounds, u64 few) {
  World world(shape);
  u64 drains = 0;
  world.run([&](u32 me) {
    ThroughputRank rank(world, me, c);
    for (u64 round = 0; round < check::rounds(rounds, few); ++round) throughput_round(world, rank, c, round, me);
    if (me == 0) drains = rank.drains();
  });
  return drains;
}

}  // namespace uccl::testing
