// Rows that stay in their owner's arena: summed where they lie, theirs again when combine returns, refused once their owner
// has given up.
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "kernels/throughput/calls.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

// Rows that are summed where they lie: rings of two chunks, other nodes, ranks that copy theirs beside ranks that do not.
TEST(throughput_contribute_reads_rows_in_arenas) {
  u64 seed = 360;
  for (const auto& node_of :
       std::vector<std::vector<u32>>{{0, 0}, {0, 0, 0}, {0, 0, 0, 0, 0}, {0, 0, 0, 1}, {0, 1, 2, 0, 1}, {0, 0, 1, 1}})
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
      c.arenas = true;
      c.warps = warps;
      c.threads = 1 + static_cast<u32>(seed % 2);
      throughput_rounds(shape, c, 12);
    }
}

// Whoever does not read rows that stay keeps their owner from returning; the owner says who it was. Who comes to read
// them after that refuses them.
namespace {

// Rank 1 says that it is in rank 0's call, and then does nothing until that one's call has ended. Not only until it has
// given up: the warp that looked at rank 1's identity, which is written again, is not the one that gives up.
void come_and_read_nothing(World& world, const std::atomic<bool>& ended) {
  const RankContext& c = world.context(1);
  auto* mine = reinterpret_cast<u64*>(world.data(1) + c.signals.flag(Phase::kIdentity, 1));
  const u64 call = *mine + 1, flag = c.signals.flag(Phase::kIdentity, 0);
  const auto rest = [] { std::this_thread::sleep_for(std::chrono::microseconds(100)); };
  while (world.word(world.data(0), flag) < call && !world.aborted(0)) rest();
  const u64 identity = c.signals.identity(Phase::kIdentity, call);
  std::memcpy(world.data(1) + identity, world.data(0) + identity, sizeof(CallIdentity));
  __atomic_store_n(mine, call, __ATOMIC_RELEASE);
  while (!ended.load(std::memory_order_acquire)) rest();
}

}  // namespace

TEST(throughput_contribute_names_a_rank_that_does_not_read) {
  WorldShape shape;
  shape.node_of = {0, 0};
  shape.unit_bytes = 64 << 10;  // room for all rows: only the wait for readers can notice
  shape.timeout_ns = 1'500'000'000;
  World world(shape);
  ThroughputCase c;
  c.seed = 3;
  c.num_experts = 2;
  c.arenas = true;
  u64 round = 0;
  const auto has_rows_of = [&](u32 me, u32 source) {
    for (const Taken& t : taken_rows(world, c, round, me))
      if (t.source == source) return true;
    return false;
  };
  while (!has_rows_of(0, 1) || has_rows_of(1, 0)) ++round;
  const CombineInput inputs[] = {{world, c, round, 0}, {world, c, round, 1}};
  std::atomic<bool> ended{false};
  world.run([&](u32 me) {
    const RoundPlan plan = round_plan(world, c, round);
    const RankInput in = throughput_input(world, c, round, me);
    ThroughputRank rank(world, me, c);
    auto [routing, got] = rank.receive(plan, in);
    check_no_fault(world, me, "dispatch");
    if (me == 1) come_and_read_nothing(world, ended);
    Poisoned<u16> out(u64{in.num_tokens} * plan.combine_hidden);
    Poisoned<float> weights(u64{in.num_tokens} * plan.combine_topk);
    rank.combine(plan, in.num_tokens, routing,
                 {inputs[me].x.data(), inputs[me].weights.data(), got.src_idx.data(), nullptr, nullptr, out.data(),
                  weights.data(), true});
    if (me == 0) ended.store(true, std::memory_order_release);  // pairs with come_and_read_nothing
  });
  const Fault first = world.fault(0), second = world.fault(1);
  CHECK(first.kind == FaultKind::kTimeout && first.phase == WaitPhase::kCombineSend);
  CHECK_EQ(first.peer, 1u);
  CHECK(second.kind == FaultKind::kWithdrawn && second.phase == WaitPhase::kCombineReceive);
  CHECK_EQ(second.peer, 0u);
}
