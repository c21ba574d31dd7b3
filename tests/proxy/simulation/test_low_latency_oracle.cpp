// The low-latency oracle notices one wrong value anywhere. (That it is right: tests/uccl_ep/tools/test_simulate.py.)
#include "native/check.h"
#include "proxy/simulation/small.h"
#include "simulation/driver.h"
#include "simulation/low_latency_oracle.h"

namespace {
using namespace uccl;
using namespace uccl::simulation;

// Outputs exactly as they must be.
struct Right {
  Right(const Case& c, LowLatencyOracle& oracle, u64 round, u32 rank) {
    const u32 ranks = c.world.num_ranks(), experts = c.num_experts / ranks, hidden = c.world.hidden;
    const u64 stride = u64{ranks} * c.world.max_tokens, plane = experts * stride;
    u8* const to = x.poison(plane * hidden * 2);
    i32* const info = src_info.poison(3 * plane);
    i64* const range = layout_range.zero(u64{experts} * ranks);
    count.zero(experts);
    for (u32 e = 0; e < experts; ++e) {
      const auto rows = oracle.rows_of(round, rank * experts + e);
      count.data()[e] = static_cast<i32>(rows.size());
      for (u64 i = 0; i < rows.size(); ++i) {
        const LowLatencyInput& in = oracle.input(round, rows[i].source);
        const u64 at = e * stride + i;
        std::memcpy(to + at * hidden * 2, &in.x[u64{rows[i].token} * hidden], hidden * 2);
        info[at] = static_cast<i32>(rows[i].token);
        info[plane + at] = static_cast<i32>(rows[i].token * in.topk + rows[i].k);
        info[2 * plane + at] = static_cast<i32>(rows[i].source);
        ++range[e * ranks + rows[i].source];
      }
      u64 begin = 0;
      for (u32 s = 0; s < ranks; ++s) {
        const u64 n = static_cast<u64>(range[e * ranks + s]);
        range[e * ranks + s] = static_cast<i64>(begin << 32 | n);
        begin += n;
      }
    }
  }
  Received view() const { return {x.data(), nullptr, count.data(), src_info.data(), layout_range.data(), x.size()}; }
  Buffer<u8> x;
  Buffer<i32> count, src_info;
  Buffer<i64> layout_range;
};

}  // namespace

TEST(simulation_low_latency_oracle_sees_one_wrong_value) {
  const Case c = testing::small_case(Mode::kLowLatency);
  LowLatencyOracle oracle(c);
  u64 rows = 0, seen = 0;
  for (u64 round = 0; round < 8; ++round)
    for (u32 rank = 0; rank < 4; ++rank) {
      Right right(c, oracle, round, rank);
      const u64 n = oracle.check_received(round, rank, right.view());
      rows += n;
      if (n == 0 || right.count[0] == 0) continue;
      ++seen;
      right.x.data()[1] ^= 1;
      CHECK_THROWS(Violation, oracle.check_received(round, rank, right.view()));
      right.x.data()[1] ^= 1;
      ++right.src_info.data()[0];
      CHECK_THROWS(Violation, oracle.check_received(round, rank, right.view()));
      --right.src_info.data()[0];
      right.x.data()[right.x.size() - 1] = 0;  // a row beyond the count
      CHECK_THROWS(Violation, oracle.check_received(round, rank, right.view()));
      right.x.data()[right.x.size() - 1] = kPoison;
      ++right.count.data()[0];
      CHECK_THROWS(Violation, oracle.check_received(round, rank, right.view()));
    }
  CHECK(rows > 50 && seen > 5);
}

TEST(simulation_low_latency_oracle_sees_a_wrong_sum) {
  const Case c = testing::small_case(Mode::kLowLatency);
  LowLatencyOracle oracle(c);
  u32 seen = 0;
  for (u64 round = 0; round < 8; ++round) {
    const auto sum = oracle.combined(round, 1);
    Buffer<u16> got;
    u16* const to = got.poison(u64{c.world.max_tokens} * c.world.hidden);
    std::copy(sum.begin(), sum.end(), to);
    CHECK_EQ(oracle.check_combined(round, 1, got), sum.size() / c.world.hidden);
    if (sum.empty()) continue;
    ++seen;
    to[sum.size() - 1] ^= 1;
    CHECK_THROWS(Violation, oracle.check_combined(round, 1, got));
  }
  CHECK(seen > 2);
}
