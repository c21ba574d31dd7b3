// Random numbers and buffers of the simulation.
#include <set>

#include "native/check.h"
#include "simulation/values.h"

namespace {
using namespace uccl;
using namespace uccl::simulation;
}  // namespace

TEST(simulation_values_repeat_and_differ) {
  Random a(5), b(5), c(6);
  std::set<u64> seen;
  for (int i = 0; i < 1000; ++i) {
    const u64 v = a.next();
    CHECK_EQ(v, b.next());
    CHECK(v != c.next());
    seen.insert(v);
  }
  CHECK_EQ(seen.size(), 1000u);
  for (int i = 0; i < 1000; ++i) {
    CHECK(a.below(7) < 7);
    const u64 v = a.between(3, 5);
    CHECK(v >= 3 && v <= 5);
  }
  CHECK_EQ(a.below(0), 0u);
}

TEST(simulation_values_rows_are_finite_bf16) {
  std::vector<u16> row(1001), again(1001);
  fill_row(row.data(), 1001, 9);
  fill_row(again.data(), 1001, 9);
  CHECK(row == again);
  u32 zeros = 0, negative = 0;
  for (const u16 v : row) {
    zeros += v == 0;
    negative += bf16_value(v) < 0;
    CHECK(bf16_value(v) > -2 && bf16_value(v) < 2);
  }
  CHECK(zeros > 2 && zeros < 100 && negative > 300 && negative < 700);
}

TEST(simulation_values_buffers_show_what_was_written) {
  Buffer<u32> b;
  b.poison(10)[3] = 1;
  CHECK(b.untouched(0, 3) && b.untouched(4, 10) && !b.untouched(3, 4));
  CHECK_EQ(b.size(), 10u);
  b.poison(4);
  CHECK(b.untouched(0, 4));
  CHECK_EQ(b.zero(6)[5], 0u);
}
