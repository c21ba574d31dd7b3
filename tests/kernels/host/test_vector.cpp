// Choice of the vector level. That all levels give the same bytes is tested with the lane code they replace
// (tests/kernels/device/test_copy.cpp).
#include "kernels/device/on_device.h"
#include "kernels/host/vector.h"
#include "kernels/host/vector_table.h"

namespace uccl::simt::host {

TEST(vector_uses_the_best_level_until_told_otherwise) {
  const VectorLevel best = best_vector_level();
  CHECK(vector_level() == best);
  CHECK(set_vector_level(VectorLevel::kScalar));
  CHECK(vector_level() == VectorLevel::kScalar);
  CHECK(set_vector_level(best));
  CHECK(vector_level() == best);
}

TEST(vector_refuses_a_level_that_this_processor_does_not_have) {
#if defined(__aarch64__)
  const VectorLevel foreign = VectorLevel::kAvx2;
  CHECK(best_vector_level() == VectorLevel::kNeon);
#else
  const VectorLevel foreign = VectorLevel::kNeon;
  CHECK_EQ(best_vector_level() != VectorLevel::kScalar,
           __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2"));
#endif
  const VectorLevel before = vector_level();
  CHECK(!set_vector_level(foreign));
  CHECK(vector_level() == before);
}

TEST(vector_reduce_does_not_touch_what_is_behind_the_row) {
  for (u32 hidden = 8; hidden <= 136; hidden += 8) {
    std::vector<u16> row(hidden, 0x3f80), out(hidden + 64, 0xaaaa);
    const u16* rows[] = {row.data()};
    reduce_rows(ReduceArgs{out.data(), rows, nullptr, 1, hidden, nullptr, nullptr});
    for (u32 i = 0; i < out.size(); ++i) CHECK_EQ(out[i], i < hidden ? 0x3f80 : 0xaaaa);
  }
}

TEST(vector_fma_is_fused_at_every_level) {
  // 1 + 2^-7 squared ends in 2^-14; a product that is rounded before the sum would lose it here.
  const u32 hidden = 32;
  const std::vector<u16> row(hidden, 0x3f81), bias(hidden, 0xbf80);
  const u16* rows[] = {row.data()};
  const float w = 1.f + 0x1p-23f;
  const float expect = std::fma(bf16_to_f(0x3f81), w, -1.f);
  for (const VectorLevel level : {VectorLevel::kScalar, VectorLevel::kNeon, VectorLevel::kAvx2, VectorLevel::kAvx512}) {
    if (!set_vector_level(level)) continue;
    std::vector<u16> out(hidden);
    reduce_rows(ReduceArgs{out.data(), rows, &w, 1, hidden, bias.data(), nullptr});
    for (const u16 v : out) CHECK_EQ(v, f_to_bf16(expect));
  }
  set_vector_level(best_vector_level());
}

}  // namespace uccl::simt::host
