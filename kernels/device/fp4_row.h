// The NVFP4 row helpers, under the rules of copy.h: one warp quantises one bf16 row. On GPUs they are lane code; on a CPU
// lane 0 does the warp's work a group at a time, in loops of fixed length that compilers vectorise: the same bytes.
#pragma once
#include "kernels/device/copy_lanes.h"
#include "kernels/device/fp4.h"
#include "kernels/device/simt.h"

namespace uccl::simt {

struct Nvfp4RowArgs {
  const u16* x;  // bf16 [hidden], 16-byte aligned
  u8* out;  // [hidden / 2], 4-byte aligned: channel 2i in the low half of byte i
  u8* scales;  // e4m3 [hidden / 16]
  u32 hidden;  // a multiple of 16
  float global;  // scales are multiplied by it: 448 * 6 / (largest magnitude of all) uses e4m3's whole range
};

namespace lanes {

// A lane holds 8 channels, two neighbouring lanes a group: group_max is warp-wide.
DEV void quantize_row_nvfp4(const Nvfp4RowArgs& a) {
  const float inverse = 1.f / a.global;
  for_each_unit(a.x, a.hidden / 8, [&](u32 unit, bool on, u128 raw) {
    float f[8];
    unpack_bf16(raw, f);
    float amax = 0;
    UCCL_UNROLL
    for (u32 i = 0; i < 8; ++i) amax = fmax_(amax, fabs_(f[i]));
    const Nvfp4Scale s = nvfp4_scale(group_max<2>(amax), a.global, inverse);
    u32 codes = 0;
    UCCL_UNROLL
    for (u32 i = 0; i < 8; ++i) codes |= e2m1(f[i] * s.scale) << 4 * i;
    if (!on) return;
    reinterpret_cast<u32*>(a.out)[unit] = codes;
    if (unit % 2 == 0) a.scales[unit / 2] = static_cast<u8>(s.code);
  });
}

// Every lane gets it.
DEV u32 largest_magnitude(const u16* x, u32 hidden) {
  u32 most = 0;
  for_each_unit(x, hidden / 8, [&](u32, bool, u128 raw) {
    UCCL_UNROLL
    for (u32 i = 0; i < 8; ++i) {
      const u32 magnitude = static_cast<u32>((i < 4 ? raw.lo : raw.hi) >> 16 * (i % 4)) & 0x7fffu;
      most = magnitude > most ? magnitude : most;
    }
  });
  return static_cast<u32>(warp_max(static_cast<float>(most)));
}

}  // namespace lanes

#ifdef UCCL_SIMT_HOST
namespace host {

// One thread does the whole row.
inline void quantize_row_nvfp4(const Nvfp4RowArgs& a) {
  const float inverse = 1.f / a.global;
  for (u32 group = 0; group < a.hidden / kNvfp4Group; ++group) {
    const u16* const x = a.x + group * kNvfp4Group;
    float f[kNvfp4Group];
    u32 codes[kNvfp4Group];
    float amax = 0;
    for (u32 i = 0; i < kNvfp4Group; ++i) f[i] = bf16_to_f(x[i]);
    for (u32 i = 0; i < kNvfp4Group; ++i) amax = fmax_(amax, fabs_(f[i]));
    const Nvfp4Scale s = nvfp4_scale(amax, a.global, inverse);
    for (u32 i = 0; i < kNvfp4Group; ++i) codes[i] = e2m1(f[i] * s.scale);
    u8* const out = a.out + group * kNvfp4Group / 2;
    for (u32 i = 0; i < kNvfp4Group / 2; ++i) out[i] = static_cast<u8>(codes[2 * i] | codes[2 * i + 1] << 4);
    a.scales[group] = static_cast<u8>(s.code);
  }
}

inline u32 largest_magnitude(const u16* x, u32 hidden) {
  u16 most = 0;
  for (u32 i = 0; i < hidden; ++i) {
    const u16 magnitude = static_cast<u16>(x[i] & 0x7fffu);
    most = magnitude > most ? magnitude : most;
  }
  return most;
}

}  // namespace host
#endif

// The bits of the largest magnitude of a bf16 row, by which a NaN is the largest of all. On a CPU lane 0 alone gets it.
DEV u32 largest_magnitude(const u16* x, u32 hidden) {
#ifdef UCCL_SIMT_HOST
  return lane() == 0 ? host::largest_magnitude(x, hidden) : 0;
#else
  return lanes::largest_magnitude(x, hidden);
#endif
}

DEV void quantize_row_nvfp4(const Nvfp4RowArgs& a) {
#ifdef UCCL_SIMT_HOST
  if (lane() == 0) host::quantize_row_nvfp4(a);
#else
  lanes::quantize_row_nvfp4(a);
#endif
}

}  // namespace uccl::simt

namespace uccl {
using simt::largest_magnitude;
using simt::Nvfp4RowArgs;
using simt::quantize_row_nvfp4;
}  // namespace uccl
