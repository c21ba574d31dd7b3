// e2m1 (0, 0.5, 1, 1.5, 2, 3, 4, 6 and a sign) and its scales: NVFP4, where 16 channels share an e4m3 scale and all
// share one float that is known beforehand. In software everywhere: the bytes of NVIDIA's cvt.rn.satfinite.e2m1x2.f32.
#pragma once
#include "kernels/device/fp8.h"

namespace uccl::simt {

inline constexpr u32 kNvfp4Group = 16;               // channels that share a scale
inline constexpr float kE2m1MaxInverse = 1.f / 6.f;  // rounded to float once; amax is multiplied by it

// Nearest, ties to even, saturating; every NaN is 7. Four bits. Branch-free, so that compilers can vectorise it.
DEV u32 e2m1(float f) {
  const u32 bits = f_bits(f);
  const u32 sign = bits >> 28 & 8u;
  const u32 magnitude = bits & 0x7fffffffu;
  const u32 clamped = magnitude > 0x40c00000u ? 0x40c00000u : magnitude;  // 6
  // Below 1 results are subnormal: adding 2^22, whose last place is 0.5, lets the float adder do the rounding.
  const u32 subnormal = f_bits(bits_f(clamped) + 4194304.f) - 0x4a800000u;
  const u32 normal = (clamped - (126u << 23) + 0x1fffffu + (clamped >> 22 & 1)) >> 22;
  const u32 value = sign | (clamped < (127u << 23) ? subnormal : normal);
  return magnitude > 0x7f800000u ? 7u : value;
}

DEV float e2m1_to_f(u32 code) {
  const u32 sign = (code & 8u) << 28, magnitude = code & 7u;
  if (magnitude < 2) return bits_f(sign | f_bits(static_cast<float>(magnitude) * 0.5f));
  return bits_f(sign | ((magnitude << 22) + (126u << 23)));
}

struct Nvfp4Scale {
  u32 code;     // e4m3, what travels: value ~ quantised * e4m3_to_f(code) / global
  float scale;  // quantised = value * scale
};

// `amax` is the group's largest magnitude; `inverse` is 1 / global, rounded once.
DEV Nvfp4Scale nvfp4_scale(float amax, float global, float inverse) {
  const u32 code = e4m3x2(global * (amax * kE2m1MaxInverse), 0.f) & 0xffu;
  const float stored = e4m3_to_f(static_cast<u8>(code));
  return Nvfp4Scale{code, stored != 0.f ? 1.f / (stored * inverse) : 0.f};
}

// The float of a row that has one of its own.
struct Nvfp4RowScale {
  float global;  // its scales are multiplied by it: the largest magnitude uses e4m3's whole range
  float inverse;  // what travels, 1 / global; NaN where the row holds an infinity or a NaN, since e2m1 has neither
};
// `most`: bits of its largest magnitude in bf16.
DEV Nvfp4RowScale nvfp4_row_scale(u32 most) {
  if (most >= 0x7f80u) return Nvfp4RowScale{1.f, bits_f(0x7fc00000u)};
  const float global = 448.f * 6.f / fmax_(bf16_to_f(static_cast<u16>(most)), 0x1p-100f);
  return Nvfp4RowScale{global, 1.f / global};
}

}  // namespace uccl::simt

namespace uccl {
using simt::e2m1;
using simt::e2m1_to_f;
using simt::kNvfp4Group;
using simt::nvfp4_row_scale;
using simt::nvfp4_scale;
using simt::Nvfp4RowScale;
using simt::Nvfp4Scale;
}  // namespace uccl
