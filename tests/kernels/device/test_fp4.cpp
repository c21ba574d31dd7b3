// e2m1 against a search over all its values, and NVFP4's scales against arithmetic in double.
#include <cmath>

#include "kernels/device/fp4.h"
#include "kernels/device/on_device.h"

namespace uccl::simt {
namespace {

constexpr double kE2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

// Nearest of the 8 magnitudes; ties to the even code; larger than 6 saturates.
u32 e2m1_by_search(float f) {
  if (std::isnan(f)) return 7;
  const double m = std::fabs(static_cast<double>(f));
  u32 low = 0;
  while (low < 7 && kE2m1[low + 1] <= m) ++low;
  u32 best = low;
  if (low < 7) {
    const double down = m - kE2m1[low], up = kE2m1[low + 1] - m;
    if (up < down || (up == down && low % 2 == 1)) best = low + 1;
  }
  return best | (std::signbit(f) ? 8u : 0u);
}

void check_both_signs(float f) {
  CHECK_EQ(e2m1(f), e2m1_by_search(f));
  CHECK_EQ(e2m1(-f), e2m1_by_search(-f));
}

}  // namespace

TEST(fp4_conversion_is_right_for_every_bf16_value) {
  for (u32 b = 0; b < 0x8000; ++b) check_both_signs(bf16_to_f(static_cast<u16>(b)));
}

TEST(fp4_conversion_is_right_around_every_rounding_boundary) {
  for (u32 code = 0; code < 7; ++code) {
    const float middle = static_cast<float>((kE2m1[code] + kE2m1[code + 1]) / 2);
    for (const float f : {middle, std::nextafter(middle, 0.f), std::nextafter(middle, 9.f)}) check_both_signs(f);
  }
  for (const float f : {6.f, 6.5f, 7.f, 1e30f, INFINITY, 1e-40f, 0.f}) check_both_signs(f);
  CHECK_EQ(e2m1(bits_f(0xffffffffu)), 7u);
}

TEST(fp4_conversion_is_right_for_random_floats) {
  Random random(4);
  for (int i = 0; i < 200000; ++i) check_both_signs(bits_f(static_cast<u32>(random()) & 0x7fffffffu));
  for (int i = 0; i < 200000; ++i) check_both_signs(static_cast<float>(random() % 8000) / 1000.f);
}

TEST(fp4_decode_is_right_for_every_code) {
  for (u32 code = 0; code < 16; ++code) {
    CHECK_EQ(static_cast<double>(e2m1_to_f(code)), (code & 8 ? -1 : 1) * kE2m1[code & 7]);
    CHECK_EQ(std::signbit(e2m1_to_f(code)), code >= 8);
    CHECK_EQ(e2m1(e2m1_to_f(code)), code);
  }
}

TEST(fp4_scale_follows_the_recipe) {
  Random random(9);
  for (int i = 0; i < 20000; ++i) {
    const float amax =
        std::fabs(bf16_to_f(plain_bf16(random))) * std::ldexp(1.f, static_cast<int>(below(random, 20)) - 12);
    const float global =
        std::ldexp(1.f + static_cast<float>(below(random, 1000)) / 1000.f, static_cast<int>(below(random, 24)) - 8);
    const Nvfp4Scale s = nvfp4_scale(amax, global, 1.f / global);
    const float wanted = global * (amax * (1.f / 6.f));
    CHECK_EQ(s.code, e4m3_software(wanted));
    const float stored = e4m3_to_f(static_cast<u8>(s.code));
    CHECK(s.code < 0x7f && stored <= 448.f);
    if (stored == 0.f) {
      CHECK_EQ(s.scale, 0.f);
    } else {
      CHECK(std::fabs(static_cast<double>(s.scale) * stored / global - 1.0) < 1e-6);
    }
  }
}

TEST(fp4_scale_of_special_groups) {
  const float global = 448.f * 6.f;
  CHECK_EQ(nvfp4_scale(0.f, global, 1.f / global).scale, 0.f);
  CHECK_EQ(nvfp4_scale(0.f, global, 1.f / global).code, 0u);
  CHECK_EQ(nvfp4_scale(INFINITY, global, 1.f / global).code, 0x7eu);  // saturates
  CHECK_EQ(nvfp4_scale(1.f, global, 1.f / global).code, 0x7eu);       // 448: the whole range is used
  CHECK_EQ(e2m1(1.f * nvfp4_scale(1.f, global, 1.f / global).scale), 7u);
}

}  // namespace uccl::simt
