// The checks of throughput results notice one wrong value.
#include "native/check.h"
#include "proxy/simulation/small.h"
#include "simulation/driver.h"
#include "simulation/throughput_oracle.h"

TEST(simulation_throughput_checks_see_one_wrong_value) {
  using namespace uccl;
  using namespace uccl::simulation;
  const Case c = testing::small_case(Mode::kThroughput);
  ThroughputOracle oracle(c);
  u32 seen = 0;
  for (u64 round = 0; round < 30; ++round) {
    const RoundPlan& p = oracle.plan(round);
    const auto& rows = oracle.taken(round, 2);
    if (p.scale_words != 0) continue;
    Buffer<u16> x;
    Buffer<u32> scales;
    Buffer<i64> ids;
    Buffer<float> weights;
    Buffer<i32> source;
    u16* const to = x.poison((rows.size() + 1) * p.hidden);
    i32* const tokens = source.poison(rows.size() + 1);
    for (u64 i = 0; i < rows.size(); ++i) {
      const ThroughputInput& in = oracle.input(round, rows[i].source);
      std::memcpy(to + i * p.hidden, &in.x[u64{rows[i].token} * p.hidden], 2ull * p.hidden);
      tokens[i] = static_cast<i32>(rows[i].token);
    }
    const DispatchGot got{x, scales, ids, weights, source, 0};
    CHECK_EQ(oracle.check_dispatched(round, 2, got), rows.size());
    if (rows.empty()) continue;
    ++seen;
    to[(rows.size() - 1) * p.hidden] ^= 1;
    CHECK_THROWS(Violation, oracle.check_dispatched(round, 2, got));
    to[(rows.size() - 1) * p.hidden] ^= 1;
    ++tokens[0];
    CHECK_THROWS(Violation, oracle.check_dispatched(round, 2, got));
    --tokens[0];
    tokens[rows.size()] = 0;
    CHECK_THROWS(Violation, oracle.check_dispatched(round, 2, got));

    const auto sum = oracle.combined(round, 2);
    if (sum.x.empty()) continue;
    Buffer<u16> out;
    Buffer<float> out_weights;
    std::copy(sum.x.begin(), sum.x.end(), out.poison(sum.x.size()));
    std::copy(sum.weights.begin(), sum.weights.end(), out_weights.poison(sum.weights.size()));
    oracle.check_combined(round, 2, out, out_weights);
    out.data()[0] ^= 1;
    CHECK_THROWS(Violation, oracle.check_combined(round, 2, out, out_weights));
  }
  CHECK(seen > 3);
}
