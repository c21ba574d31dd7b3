// The NVFP4 row helper, under the rules of copy.h: one warp quantises one bf16 row. On GPUs it is lane code; on a CPU
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

}  // namespace host
#endif

DEV void quantize_row_nvfp4(const Nvfp4RowArgs& a) {
#ifdef UCCL_SIMT_HOST
  if (lane() == 0) host::quantize_row_nvfp4(a);
#else
  lanes::quantize_row_nvfp4(a);
#endif
}

}  // namespace uccl::simt

namespace uccl {
using simt::Nvfp4RowArgs;
using simt::quantize_row_nvfp4;
}  // namespace uccl
