// The reading half of a throughput dispatch: a team that goes round its sources.
#include <algorithm>

#include "kernels/throughput/calls.h"
#include "kernels/throughput/common.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

TEST(throughput_receive_reads_on_while_the_first_source_is_late) {
  // Rank 0 exchanges counts and does not come. What the others have for each other is read to its end all the same.
  WorldShape shape;
  shape.node_of = {0, 0, 0};
  shape.unit_bytes = 32768;  // rings hold all: no writer waits for rank 0
  World world(shape);
  ThroughputCase c;
  c.num_experts = 3;
  c.max_channels = 1;
  c.warps = 4;
  c.gpu = simt::kWarp != 1;  // one team, which needs a lane a source
  u64 round = 0;
  const auto takes = [&](u32 reader, u32 source) {
    const std::vector<Taken> rows = taken_rows(world, c, round, reader);
    return std::any_of(rows.begin(), rows.end(), [&](const Taken& t) { return t.source == source; });
  };
  while (!takes(1, 0) || !takes(2, 0) || !takes(1, 2) || !takes(2, 1)) ++round;
  const RoundPlan plan = round_plan(world, c, round);
  std::vector<std::unique_ptr<Routing>> routings(3);
  std::vector<std::unique_ptr<ThroughputRank>> ranks(3);
  world.run([&](u32 me) {
    const RankInput in = throughput_input(world, c, round, me);
    routings[me] = std::make_unique<Routing>(world, c, in, plan.channels);
    ranks[me] = std::make_unique<ThroughputRank>(world, me, c);
    ranks[me]->layout(in, routings[me].get());
    ranks[me]->counts(plan, in, routings[me].get());
  });
  world.run({1, 2}, [&](u32 me) {
    world.set_timeout(me, 500'000'000);  // a rank that the machine holds up so long has read nothing yet
    Dispatched got(routings[me]->recv_total[0], plan.hidden, plan.scale_words, plan.topk);
    const RankInput in = throughput_input(world, c, round, me);
    ranks[me]->dispatch(plan, in, plan.topk, *routings[me], &got, false);
  });
  for (const u32 me : {1u, 2u}) {
    const Fault f = world.fault(me);
    CHECK(f.kind == FaultKind::kTimeout && f.phase == WaitPhase::kDispatchReceive);
    CHECK_EQ(f.peer, 0u);
    const StreamAddress others = dispatch_stream(world.context(me), world.throughput, 3 - me, 0);
    CHECK(*others.tail > 0);
    CHECK_EQ(others.heads[me], *others.tail);
  }
}
