// e4m3 against a search over all its values, and the scales against arithmetic in double.
#include <cmath>

#include "kernels/device/fp8.h"
#include "kernels/device/on_device.h"

namespace uccl::simt {
namespace {

double e4m3_value(u32 code) {  // code < 0x7f
  const u32 exponent = code >> 3, mantissa = code & 7;
  return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, static_cast<int>(exponent) - 10);
}

// Nearest of the 127 magnitudes; ties to the even code; larger than 448 saturates.
u32 e4m3_by_search(float f) {
  if (std::isnan(f)) return 0x7f;
  const double m = std::fabs(static_cast<double>(f));
  u32 low = 0;
  while (low < 0x7e && e4m3_value(low + 1) <= m) ++low;
  u32 best = low;
  if (low < 0x7e) {
    const double down = m - e4m3_value(low), up = e4m3_value(low + 1) - m;
    if (up < down || (up == down && low % 2 == 1)) best = low + 1;
  }
  return best | (std::signbit(f) ? 0x80u : 0u);
}

void check_both_signs(float f) {
  CHECK_EQ(e4m3_software(f), e4m3_by_search(f));
  CHECK_EQ(e4m3_software(-f), e4m3_by_search(-f));
}

}  // namespace

TEST(fp8_conversion_is_right_for_every_bf16_value) {
  for (u32 b = 0; b < 0x8000; ++b) check_both_signs(bf16_to_f(static_cast<u16>(b)));
}

TEST(fp8_conversion_is_right_around_every_rounding_boundary) {
  for (u32 code = 0; code < 0x7e; ++code) {
    const float middle = static_cast<float>((e4m3_value(code) + e4m3_value(code + 1)) / 2);
    for (const float f : {middle, std::nextafter(middle, 0.f), std::nextafter(middle, 1e9f)}) check_both_signs(f);
  }
  for (const float f : {448.f, 464.f, 1e30f, INFINITY, 1e-40f, 0.f}) check_both_signs(f);
  CHECK_EQ(e4m3_software(bits_f(0xffffffffu)), 0x7fu);
}

TEST(fp8_conversion_is_right_for_random_floats) {
  Random random(3);
  for (int i = 0; i < 200000; ++i) check_both_signs(bits_f(static_cast<u32>(random()) & 0x7fffffffu));
  for (int i = 0; i < 200000; ++i) check_both_signs(static_cast<float>(random() % 500000) / 1000.f);
}

TEST(fp8_pair_puts_the_first_value_low) {
  CHECK_EQ(e4m3x2(1.f, -2.f), e4m3_by_search(1.f) | e4m3_by_search(-2.f) << 8);
}

TEST(fp8_decode_is_right_for_every_byte) {
  for (u32 code = 0; code < 256; ++code) {
    const float f = e4m3_to_f(static_cast<u8>(code));
    if ((code & 0x7f) == 0x7f) {
      CHECK(std::isnan(f));
      continue;
    }
    CHECK_EQ(static_cast<double>(f), (code & 0x80 ? -1 : 1) * e4m3_value(code & 0x7f));
    CHECK_EQ(std::signbit(f), (code & 0x80) != 0);
    CHECK_EQ(e4m3_software(f), code);
  }
}

TEST(fp8_scales_follow_the_contract) {
  Random random(4);
  for (int i = 0; i < 100000; ++i) {
    const float amax = i == 0 ? 0.f : bf16_to_f(static_cast<u16>(random() % 0x7f80));
    const float m = std::max(amax, 1e-4f);
    const Fp8Scale plain = fp8_scale(amax, false);
    CHECK_EQ(plain.scale, 448.f / m);
    CHECK_EQ(plain.scale_inv, m * (1.f / 448.f));
    const Fp8Scale rounded = fp8_scale(amax, true);
    const double exponent = std::ceil(std::log2(static_cast<double>(m * (1.f / 448.f))));
    CHECK_EQ(static_cast<double>(rounded.scale_inv), std::exp2(exponent));
    CHECK_EQ(static_cast<double>(rounded.scale), std::exp2(-exponent));
    CHECK_EQ(ue8m0(rounded.scale_inv), static_cast<u32>(exponent + 127));
    CHECK_EQ(ue8m0_to_f(ue8m0(rounded.scale_inv)), rounded.scale_inv);
  }
  CHECK_EQ(fp8_scale(448.f, true).scale_inv, 1.f);  // an exact power of two is not rounded up
  CHECK_EQ(fp8_scale(450.f, true).scale_inv, 2.f);
  CHECK_EQ(fp8_scale(INFINITY, true).scale, 0.f);
  CHECK_EQ(fp8_scale(INFINITY, false).scale, 0.f);
}

}  // namespace uccl::simt
