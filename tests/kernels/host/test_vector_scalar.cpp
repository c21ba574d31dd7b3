// The scalar level against plain arithmetic.
#include <cmath>

#include "kernels/device/fp8.h"
#include "kernels/host/vector_compare.h"

namespace uccl::simt::host {

TEST(vector_scalar_quantizes_by_the_contract) {
  Random random(24);
  for (int round = 0; round < 200; ++round) {
    u16 x[128];
    float amax = 1e-4f;
    for (u16& v : x) v = round == 0 ? 0 : plain_bf16(random), amax = std::max(amax, std::fabs(bf16_to_f(v)));
    u8 bytes[128];
    float scale_inv;
    scalar_table()->quantize_group(x, bytes, false, &scale_inv);
    CHECK_EQ(scale_inv, amax * (1.f / 448.f));
    for (u32 i = 0; i < 128; ++i) CHECK_EQ(u32{bytes[i]}, e4m3_software(bf16_to_f(x[i]) * (448.f / amax)));
  }
}

TEST(vector_scalar_reduces_in_fp32_with_a_fused_multiply_add) {
  Random random(25);
  const u32 hidden = 40, count = 5;
  std::vector<std::vector<u16>> rows(count, std::vector<u16>(hidden));
  const u16* pointers[count];
  float weights[count];
  for (u32 r = 0; r < count; ++r) {
    for (u16& v : rows[r]) v = plain_bf16(random);
    pointers[r] = rows[r].data();
    weights[r] = static_cast<float>(r + 1) / 7.f;
  }
  std::vector<u16> out(hidden);
  scalar_table()->reduce({out.data(), pointers, weights, count, hidden, pointers[0], pointers[1]});
  for (u32 c = 0; c < hidden; ++c) {
    float acc = bf16_to_f(rows[0][c]) + bf16_to_f(rows[1][c]);
    for (u32 r = 0; r < count; ++r) acc = std::fma(bf16_to_f(rows[r][c]), weights[r], acc);
    CHECK_EQ(out[c], f_to_bf16(acc));
  }
}

TEST(vector_scalar_reduces_fp8_rows_scaled_before_the_weight) {
  // 2^-9 (the least e4m3), -448, 1.5 and 1; the second group has a scale of its own.
  constexpr u8 kCodes[] = {0x01, 0xfe, 0x3c, 0x38};
  constexpr float kValues[] = {1.f / 512.f, -448.f, 1.5f, 1.f};
  const u32 hidden = 256;
  std::vector<float> row(hidden / 4 + 2);
  u8* const codes = reinterpret_cast<u8*>(row.data());
  for (u32 i = 0; i < hidden; ++i) codes[i] = kCodes[i % 4];
  row[hidden / 4] = 0.75f, row[hidden / 4 + 1] = 3.f;
  const u8* rows[] = {codes, codes};
  const float weights[] = {1.f / 3.f, 0.25f};
  std::vector<u16> out(hidden);
  scalar_table()->reduce_fp8({out.data(), rows, weights, 2, hidden, hidden, 0});
  for (u32 c = 0; c < hidden; ++c) {
    const float value = kValues[c % 4] * (c < 128 ? 0.75f : 3.f);
    CHECK_EQ(out[c], f_to_bf16(std::fma(value, weights[1], value * weights[0])));
  }
}

}  // namespace uccl::simt::host
