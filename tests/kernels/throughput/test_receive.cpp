// The reading half of a throughput dispatch: a team that goes round its sources.
#include "kernels/throughput/calls.h"
#include "kernels/throughput/common.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

constexpr u32 kRanks = 5;

// Rank `late` exchanges counts and does not come. What the others have for each other is read to its end all the same.
void without(u32 late) {
  WorldShape shape;
  shape.node_of = std::vector<u32>(kRanks, 0);
  shape.unit_bytes = 65536;  // rings hold all: no writer waits for a reader
  World world(shape);
  ThroughputCase c;
  c.num_experts = kRanks;
  c.max_channels = 1;
  c.warps = 6;
  c.gpu = simt::kWarp != 1;  // a team a block, which needs a lane a source
  const RoundPlan plan = round_plan(world, c, 0);
  std::vector<std::unique_ptr<Routing>> routings(kRanks);
  std::vector<std::unique_ptr<ThroughputRank>> ranks(kRanks);
  std::vector<u32> present;
  for (u32 r = 0; r < kRanks; ++r)
    if (r != late) present.push_back(r);
  world.run([&](u32 me) {
    const RankInput in = throughput_input(world, c, 0, me);
    routings[me] = std::make_unique<Routing>(world, c, in, plan.channels);
    ranks[me] = std::make_unique<ThroughputRank>(world, me, c);
    ranks[me]->layout(in, routings[me].get());
    ranks[me]->counts(plan, in, routings[me].get());
  });
  world.run(present, [&](u32 me) {
    world.set_timeout(me, 500'000'000);
    Dispatched got(routings[me]->recv_total[0], plan.hidden, plan.scale_words, plan.topk);
    ranks[me]->dispatch(plan, throughput_input(world, c, 0, me), plan.topk, *routings[me], &got, false);
  });
  u64 chunks = 0;
  for (const u32 me : present) {
    const Fault f = world.fault(me);
    CHECK(f.kind == FaultKind::kTimeout && f.phase == WaitPhase::kDispatchReceive);
    CHECK_EQ(f.peer, late);
    for (const u32 source : present) {
      const StreamAddress s = dispatch_stream(world.context(me), world.throughput, source, 0);
      CHECK_EQ(s.heads[me], *s.tail);
      chunks += *s.tail;
    }
  }
  CHECK(chunks > 0);
}

}  // namespace

TEST(throughput_receive_reads_on_while_a_source_is_late) {
  for (const u32 late : {0u, 2u}) without(late);  // whichever block reads it, with one behind it
}
