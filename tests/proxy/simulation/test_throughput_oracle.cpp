// The throughput oracle's inputs and sums keep to what the case says. (That they are right: test_simulate.py.)
#include "native/check.h"
#include "proxy/simulation/small.h"
#include "simulation/throughput_oracle.h"

TEST(simulation_throughput_oracle_inputs_are_of_every_kind) {
  using namespace uccl;
  using namespace uccl::simulation;
  const Case c = testing::small_case(Mode::kThroughput);
  ThroughputOracle oracle(c);
  u32 none = 0, most = 0, dropped = 0, cached = 0, worst = 0, scaled = 0;
  for (u64 round = 0; round < 60; ++round) {
    const RoundPlan& p = oracle.plan(round);
    CHECK(p.channels >= 1 && p.channels <= c.max_channels && p.hidden % 8 == 0 && p.hidden <= c.max_hidden);
    CHECK(StreamGeometry::make(c.world.unit_bytes, p.channels, dispatch_shape(p, p.topk).bytes()).num_slots != 0);
    cached += p.cached;
    worst += p.worst;
    scaled += p.scale_words != 0;
    u64 sent = 0, taken = 0;
    for (u32 r = 0; r < 4; ++r) {
      const ThroughputInput& in = oracle.input(round, r);
      CHECK(&in == &oracle.input(round, r));
      none += in.num_tokens == 0;
      most += in.num_tokens == c.max_tokens;
      for (const i64 e : in.topk_idx) dropped += e < 0 || e >= static_cast<i64>(c.num_experts);
      for (const u8 g : in.goes_to) sent += g;
      taken += oracle.taken(round, r).size();
      CHECK_EQ(oracle.combined(round, r).x.size(), u64{in.num_tokens} * p.combine_hidden);
    }
    CHECK_EQ(sent, taken);
  }
  CHECK(none > 10 && most > 10 && dropped > 10 && cached > 5 && worst > 5 && scaled > 5);
}
