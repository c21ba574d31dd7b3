// The row helpers of copy.h in plain SIMT: what GPUs run, and what the host's vector versions are tested against byte
// by byte. Kernels include copy.h.
#pragma once
#include "kernels/device/fp8.h"
#include "kernels/device/simt.h"

namespace uccl::simt::lanes {

DEV void copy_row(u8* dst, const u8* src, u64 bytes) {
  auto* const to = reinterpret_cast<u128*>(dst);
  const auto* const from = reinterpret_cast<const u128*>(src);
  const u64 units = bytes / sizeof(u128);
  u64 i = lane();
  for (; i + 3 * kWarp < units; i += 4 * kWarp) {  // four loads in flight a lane hide the latency of HBM
    const u128 a = ld_nc(from + i), b = ld_nc(from + i + kWarp);
    const u128 c = ld_nc(from + i + 2 * kWarp), d = ld_nc(from + i + 3 * kWarp);
    st_na(to + i, a);
    st_na(to + i + kWarp, b);
    st_na(to + i + 2 * kWarp, c);
    st_na(to + i + 3 * kWarp, d);
  }
  for (; i < units; i += kWarp) st_na(to + i, ld_nc(from + i));
}

DEV void zero_row(u8* dst, u64 bytes) {
  for (u64 i = lane(); i < bytes / sizeof(u128); i += kWarp) st_na(reinterpret_cast<u128*>(dst) + i, u128{0, 0});
}

// The eight bf16 values of a 16-byte unit.
DEV void unpack_bf16(u128 unit, float* f) {
  UCCL_UNROLL
  for (u32 i = 0; i < 4; ++i) {
    f[i] = bf16_to_f(static_cast<u16>(unit.lo >> 16 * i));
    f[4 + i] = bf16_to_f(static_cast<u16>(unit.hi >> 16 * i));
  }
}
DEV u128 pack_bf16(const float* f) {
  u128 unit{0, 0};
  UCCL_UNROLL
  for (u32 i = 0; i < 4; ++i) {
    unit.lo |= static_cast<u64>(f_to_bf16(f[i])) << 16 * i;
    unit.hi |= static_cast<u64>(f_to_bf16(f[4 + i])) << 16 * i;
  }
  return unit;
}

// A lane holds 8 channels, 16 neighbouring lanes a scale group. All lanes stay in the loop: group_max is warp-wide.
// `emit(group, scale_inv)` is called by the group's first lane.
template <class Emit>
DEV void quantize_groups(const u16* x, u8* out, u32 hidden, bool round_scale, Emit emit) {
  const u32 units = hidden / 8;
  for (u32 first = 0; first < units; first += kWarp) {
    const u32 unit = first + lane();
    const bool on = unit < units;
    float f[8];
    unpack_bf16(on ? ld_nc(reinterpret_cast<const u128*>(x) + unit) : u128{0, 0}, f);
    float amax = 0;
    UCCL_UNROLL
    for (u32 i = 0; i < 8; ++i) amax = fmax_(amax, fabs_(f[i]));
    const Fp8Scale s = fp8_scale(group_max<16>(amax), round_scale);
    u64 bytes = 0;
    UCCL_UNROLL
    for (u32 i = 0; i < 4; ++i) bytes |= static_cast<u64>(e4m3x2(f[2 * i] * s.scale, f[2 * i + 1] * s.scale)) << 16 * i;
    if (!on) continue;
    reinterpret_cast<u64*>(out)[unit] = bytes;
    if (unit % 16 == 0) emit(unit / 16, s.scale_inv);
  }
}

DEV void quantize_row(const u16* x, u8* out, float* scale_inv, u32 hidden, bool round_scale) {
  quantize_groups(x, out, hidden, round_scale, [&](u32 group, float inverse) { scale_inv[group] = inverse; });
}

DEV void quantize_row_ue8m0(const u16* x, u8* out, u32* packed, u32 hidden) {
  u8* const bytes = reinterpret_cast<u8*>(packed);  // little-endian words, as every processor here has them
  const u32 groups = hidden / kScaleGroup;
  quantize_groups(x, out, hidden, true,
                  [&](u32 group, float inverse) { bytes[group] = static_cast<u8>(ue8m0(inverse)); });
  if (const u32 i = groups + lane(); i < (groups + 3) / 4 * 4) bytes[i] = 0;
}

struct ReduceArgs {
  u16* out;
  const u16* const* rows;
  const float* weights;  // null: plain sums
  u32 count;
  u32 hidden;
  const u16* bias0;  // or null
  const u16* bias1;  // or null
};

DEV void reduce_rows(const ReduceArgs& a) {
  for (u32 unit = lane(); unit < a.hidden / 8; unit += kWarp) {
    float acc[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    float f[8];
    if (a.bias0) unpack_bf16(ld_nc(reinterpret_cast<const u128*>(a.bias0) + unit), acc);
    if (a.bias1) {
      unpack_bf16(ld_nc(reinterpret_cast<const u128*>(a.bias1) + unit), f);
      UCCL_UNROLL
      for (u32 i = 0; i < 8; ++i) acc[i] += f[i];
    }
    for (u32 r = 0; r < a.count; ++r) {
      unpack_bf16(ld_nc(reinterpret_cast<const u128*>(a.rows[r]) + unit), f);
      if (a.weights) {
        const float w = a.weights[r];
        UCCL_UNROLL
        for (u32 i = 0; i < 8; ++i) acc[i] = fma_(f[i], w, acc[i]);
      } else {
        UCCL_UNROLL
        for (u32 i = 0; i < 8; ++i) acc[i] += f[i];
      }
    }
    st_na(reinterpret_cast<u128*>(a.out) + unit, pack_bf16(acc));
  }
}

// Rows of fp8: e4m3 [hidden], then a float for each 128 channels, by which they are multiplied.
struct Fp8ReduceArgs {
  u16* out;
  const u8* const* rows;
  const float* weights;
  u32 count;
  u32 hidden;
};

DEV void reduce_rows_fp8(const Fp8ReduceArgs& a) {
  for (u32 unit = lane(); unit < a.hidden / 16; unit += kWarp) {
    float acc[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    for (u32 r = 0; r < a.count; ++r) {
      const u128 codes = ld_nc(reinterpret_cast<const u128*>(a.rows[r]) + unit);
      const float scale_inv = reinterpret_cast<const float*>(a.rows[r] + a.hidden)[unit * 16 / kScaleGroup];
      const float w = a.weights[r];
      UCCL_UNROLL
      for (u32 i = 0; i < 8; ++i) {
        acc[i] = fma_(e4m3_to_f(static_cast<u8>(codes.lo >> 8 * i)) * scale_inv, w, acc[i]);
        acc[8 + i] = fma_(e4m3_to_f(static_cast<u8>(codes.hi >> 8 * i)) * scale_inv, w, acc[8 + i]);
      }
    }
    st_na(reinterpret_cast<u128*>(a.out) + 2 * unit, pack_bf16(acc));
    st_na(reinterpret_cast<u128*>(a.out) + 2 * unit + 1, pack_bf16(acc + 8));
  }
}

}  // namespace uccl::simt::lanes
