// Both modes of the kernels, with their engines, on two nodes of two ranks over a driver; every row is compared.
#include "kernels/low_latency/calls.h"
#include "kernels/throughput/calls.h"
#include "native/check.h"
#include "providers/native/findings.h"
#include "providers/native/under_test.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

WorldShape shape() {
  WorldShape s;
  s.node_of = {0, 0, 1, 1};
  s.num_workers = s.num_rings = 2;
  s.ring_capacity = 64;
  s.max_in_flight = 16;
  s.timeout_ns = 30'000'000'000ull;
  s.max_tokens = 8;
  s.hidden = 256;
  s.max_topk = 8;
  s.unit_bytes = 1 << 15;
  s.family = datagrams_under_test() ? "efa" : "verbs";
  s.fabric.nics = {{device_under_test(0), 1, datagrams_under_test() ? 0 : -1}};
  return s;
}

template <class Round>
void play(const Round& round) {
  World world(shape());
  world.run([&](u32 me) { round(world, me); });
  for (u32 me = 0; me < world.num_ranks(); ++me) CHECK(!world.aborted(me));
  CHECK(box::take_findings().empty());
}

constexpr u64 kRounds = 4;

}  // namespace

TEST(provider_kernels_low_latency) {
  if (!refusal().empty()) return;
  play([](World& world, u32 me) {
    LowLatencyCase c;
    c.num_experts = 2 * world.num_ranks();
    LowLatencyRank rank(world, me, c);
    u64 rows = 0;
    for (u64 i = 0; i < kRounds; ++i) rows += low_latency_round(world, rank, c, i, me);
    if (rows == 0) throw check::Failure("no row was compared");
  });
}

TEST(provider_kernels_throughput) {
  if (!refusal().empty()) return;
  play([](World& world, u32 me) {
    ThroughputCase c;
    c.num_experts = 2 * world.num_ranks();
    c.max_tokens = 8;
    c.max_hidden = 1024;
    ThroughputRank rank(world, me, c);
    u64 rows = 0;
    for (u64 i = 0; i < kRounds; ++i) rows += throughput_round(world, rank, c, i, me);
    if (rows == 0) throw check::Failure("no row was compared");
  });
}
