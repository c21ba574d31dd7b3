// Small arithmetic that every offset is computed with.
#include "native/check.h"
#include "wire/types.h"

using namespace uccl;

TEST(wire_types_low_bits_at_both_ends) {
  CHECK_EQ(low_bits(0), 0ull);
  CHECK_EQ(low_bits(1), 1ull);
  CHECK_EQ(low_bits(63), ~0ull >> 1);
  CHECK_EQ(low_bits(64), ~0ull);
}

TEST(wire_types_rounding_up) {
  for (u64 unit : {1ull, 16ull, 24ull, 4096ull})
    for (u64 v = 0; v < 10000; ++v) {
      CHECK(align_up(v, unit) >= v && align_up(v, unit) < v + unit && align_up(v, unit) % unit == 0);
      CHECK_EQ(ceil_div(v, unit) * unit, align_up(v, unit));
    }
}

TEST(wire_types_u128_is_one_store) {
  CHECK_EQ(sizeof(u128), 16u);
  CHECK_EQ(alignof(u128), 16u);
}
