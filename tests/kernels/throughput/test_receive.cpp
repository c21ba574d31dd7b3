// The reading half of a throughput dispatch: a team that goes round its sources.
#include <stdexcept>

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

// Not under ThreadSanitizer: one thread plays all warps and the hooks between them, which it is not told.
#if !defined(__SANITIZE_THREAD__)
namespace {

// All of a launch's warps in one thread. After kAbortAfter passes the rank has failed; the identity of rank 1, for which it
// had waited, comes some passes later, when some warps have seen the one and others will see the other.
struct FailsMeanwhile : simt::HostHooks {
  static constexpr u64 kAbortAfter = 100, kMostPasses = 10'000, kEpoch = 2;
  const World& world;
  const u64 late;
  u64 passes = 0;
  FailsMeanwhile(const World& of, u64 passes_late) : HostHooks{1, &pass}, world(of), late(passes_late) {
    simt::host_hooks = this;
  }
  ~FailsMeanwhile() { simt::host_hooks = nullptr; }

  static void pass(HostHooks* self, bool) {
    auto& me = *static_cast<FailsMeanwhile*>(self);
    const RankContext &mine = me.world.context(0), &other = me.world.context(1);
    ++me.passes;
    if (me.passes == kAbortAfter) simt::st_release_sys(wait_context(mine).abort, 1ull);
    if (me.passes == kAbortAfter + me.late) {
      if (simt::ld_acquire_sys(word(own_data(mine), mine.signals.flag(Phase::kIdentity, 0))) != kEpoch)
        throw std::runtime_error("rank 0 has not said which call it is in");
      *own_identity(other, Phase::kIdentity, kEpoch) = *own_identity(mine, Phase::kIdentity, kEpoch);
      simt::st_release_sys(word(own_data(other), other.signals.flag(Phase::kIdentity, 1)), kEpoch);
    }
    if (me.passes == kMostPasses) throw std::runtime_error("warps of a launch that failed wait for each other");
  }
};

void fails_meanwhile(u64 passes_late) {
  WorldShape shape;
  shape.node_of = {0, 0};
  shape.unit_bytes = 65536;
  World world(shape);
  ThroughputCase c;
  c.num_experts = 2;
  c.max_channels = 1;
  c.warps = 6;
  c.gpu = simt::kWarp != 1;
  const RoundPlan plan = round_plan(world, c, 0);
  world.run([&](u32 me) {
    const RankInput in = throughput_input(world, c, 0, me);
    ThroughputRank rank(world, me, c);
    auto [routing, got] = rank.receive(plan, in);
    rank.dispatch(plan, in, 0, routing, &got, false);  // cached; streams are drained before, since its rows are smaller
    if (me != 0) return;
    const FailsMeanwhile hooks(world, passes_late);
    rank.dispatch(plan, in, 0, routing, &got, false);  // at once: it asks which call the other is in
    CHECK(hooks.passes > FailsMeanwhile::kAbortAfter);
  });
}

}  // namespace

// Each warp finds out by itself whether the ranks are in one call. One that found that the rank has failed tells its team.
TEST(throughput_receive_ends_where_warps_see_a_failure_and_others_an_identity) {
  for (u64 late = 1; late <= simt::kSpinsPerCheck; ++late) fails_meanwhile(late);
}
#endif
