// e4m3 (OCP, no infinities, 448 the largest) and the scales that go with it. The software conversion is what gfx942
// (FNUZ hardware), sm_80 and the host use; it gives the bytes of NVIDIA's cvt.rn.satfinite.e4m3x2.f32.
#pragma once
#include "kernels/device/simt.h"

namespace uccl::simt {

inline constexpr u32 kScaleGroup = 128;        // channels that share a scale
inline constexpr u32 kMxfp8Group = 32;         // the same in MXFP8
inline constexpr float kE4m3Max = 448.f;
inline constexpr float kE4m3MaxInverse = 1.f / 448.f;  // rounded to float once; amax is multiplied by it
inline constexpr float kMinAmax = 1e-4f;       // keeps the scale of an all-zero group finite

// Nearest, ties to even, saturating; every NaN is 0x7f. Branch-free, so that compilers can vectorise it.
DEV u32 e4m3_software(float f) {
  const u32 bits = f_bits(f);
  const u32 sign = bits >> 24 & 0x80u;
  const u32 magnitude = bits & 0x7fffffffu;
  const u32 clamped = magnitude > 0x43e00000u ? 0x43e00000u : magnitude;  // 448
  // Below 2^-6 results are subnormal: adding 2^14, whose last place is 2^-9, lets the float adder do the rounding.
  const u32 subnormal = f_bits(bits_f(clamped) + 16384.f) - 0x46800000u;
  const u32 normal = (clamped - (120u << 23) + 0x7ffffu + (clamped >> 20 & 1)) >> 20;
  const u32 value = sign | (clamped < (121u << 23) ? subnormal : normal);
  return magnitude > 0x7f800000u ? 0x7fu : value;
}

// Two values to two bytes, `a` in the low one.
DEV u32 e4m3x2(float a, float b) {
  if constexpr (kHardwareE4m3) return e4m3x2_hardware(a, b);
  return e4m3_software(a) | e4m3_software(b) << 8;
}

DEV float e4m3_to_f(u8 v) {
  const u32 sign = static_cast<u32>(v & 0x80u) << 24;
  const u32 magnitude = v & 0x7fu;
  if (magnitude == 0x7fu) return bits_f(sign | 0x7fc00000u);
  if (magnitude < 8) return bits_f(sign | f_bits(static_cast<float>(magnitude) * (1.f / 512.f)));
  return bits_f(sign | ((magnitude << 20) + (120u << 23)));
}

struct Fp8Scale {
  float scale;      // quantised = value * scale
  float scale_inv;  // value ~ quantised * scale_inv; what travels
};

// `amax` is the group's largest magnitude. With round_scale both are powers of two: e = ceil(log2(amax / 448)), read
// off the float's bits.
DEV Fp8Scale fp8_scale(float amax, bool round_scale) {
  const float m = fmax_(amax, kMinAmax);
  const float ratio = m * kE4m3MaxInverse;
  if (!round_scale) return Fp8Scale{kE4m3Max / m, ratio};
  const u32 bits = f_bits(ratio);
  const u32 biased = (bits >> 23) + ((bits & 0x7fffffu) != 0);  // e + 127
  return Fp8Scale{biased >= 254 ? 0.f : bits_f((254 - biased) << 23), bits_f(biased << 23)};
}

// MXFP8's, always powers of two: the least by which no value saturates, and 2^-126 where `amax` is too small for that. An
// infinite `amax` has the exponent of NaN, which all values of the group then are.
DEV Fp8Scale mxfp8_scale(float amax) {
  const u32 bits = f_bits(amax * kE4m3MaxInverse);
  const u32 exponent = (bits >> 23) + ((bits & 0x7fffffu) != 0);
  const u32 biased = exponent == 0 ? 1u : exponent;
  return Fp8Scale{biased >= 254 ? 0.f : bits_f((254 - biased) << 23), bits_f(biased << 23)};
}

DEV u32 ue8m0(float scale_inv) { return f_bits(scale_inv) >> 23 & 0xffu; }
DEV float ue8m0_to_f(u32 byte) { return bits_f(byte << 23); }

}  // namespace uccl::simt

namespace uccl {
using simt::e4m3_to_f;
using simt::e4m3x2;
using simt::fp8_scale;
using simt::Fp8Scale;
using simt::kMxfp8Group;
using simt::kScaleGroup;
using simt::mxfp8_scale;
using simt::ue8m0;
using simt::ue8m0_to_f;
}  // namespace uccl
