// The row helpers of copy.h in plain SIMT: what GPUs run, and what the host's vector versions are tested against byte
// by byte. Kernels include copy.h.
#pragma once
#include "kernels/device/coded_rows.h"
#include "kernels/device/fp8.h"
#include "kernels/device/simt.h"

namespace uccl::simt::lanes {

// Loads that a lane has in flight hide the latency of HBM. A compiler does not arrange for them: it keeps loads and stores
// in the order of the source.
inline constexpr u32 kUnitsInFlight = 4;
inline constexpr u32 kRowsInFlight = 4;  // of a sum
// Of a plain sum whose rows lie in other GPUs, a trip over the link away: as many as a node has.
inline constexpr u32 kFarRowsInFlight = 8;

DEV void copy_row(u8* dst, const u8* src, u64 bytes) {
  auto* const to = reinterpret_cast<u128*>(dst);
  const auto* const from = reinterpret_cast<const u128*>(src);
  const u64 units = bytes / sizeof(u128);
  for (u64 first = lane(); first < units; first += kUnitsInFlight * kWarp) {
    u128 unit[kUnitsInFlight];
    UCCL_UNROLL
    for (u32 i = 0; i < kUnitsInFlight; ++i)
      unit[i] = first + i * kWarp < units ? ld_nc(from + first + i * kWarp) : u128{0, 0};
    UCCL_UNROLL
    for (u32 i = 0; i < kUnitsInFlight; ++i)
      if (first + i * kWarp < units) st_na(to + first + i * kWarp, unit[i]);
  }
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

// The warp takes a unit of `x` a lane, as often as it must: take(unit, whether there is such a unit, what it holds). All
// lanes call take() side by side.
template <class Take>
DEV void for_each_unit(const u16* x, u32 units, Take take) {
  for (u32 first = 0; first < units; first += kUnitsInFlight * kWarp) {
    u128 raw[kUnitsInFlight];
    UCCL_UNROLL
    for (u32 i = 0; i < kUnitsInFlight; ++i) {
      const u32 unit = first + i * kWarp + lane();
      raw[i] = unit < units ? ld_nc(reinterpret_cast<const u128*>(x) + unit) : u128{0, 0};
    }
    UCCL_UNROLL
    for (u32 i = 0; i < kUnitsInFlight; ++i) {
      const u32 unit = first + i * kWarp + lane();
      if (first + i * kWarp < units) take(unit, unit < units, raw[i]);
    }
  }
}

// A lane holds 8 channels, kLanes neighbouring lanes a scale group: group_max is warp-wide. `scale_of(amax)` is the
// group's Fp8Scale; `emit(group, scale_inv)` is called by its first lane.
template <u32 kLanes, class ScaleOf, class Emit>
DEV void quantize_groups(const u16* x, u8* out, u32 hidden, ScaleOf scale_of, Emit emit) {
  for_each_unit(x, hidden / 8, [&](u32 unit, bool on, u128 raw) {
    float f[8];
    unpack_bf16(raw, f);
    float amax = 0;
    UCCL_UNROLL
    for (u32 i = 0; i < 8; ++i) amax = fmax_(amax, fabs_(f[i]));
    const Fp8Scale s = scale_of(group_max<kLanes>(amax));
    u64 bytes = 0;
    UCCL_UNROLL
    for (u32 i = 0; i < 4; ++i) bytes |= static_cast<u64>(e4m3x2(f[2 * i] * s.scale, f[2 * i + 1] * s.scale)) << 16 * i;
    if (!on) return;
    reinterpret_cast<u64*>(out)[unit] = bytes;
    if (unit % kLanes == 0) emit(unit / kLanes, s.scale_inv);
  });
}

DEV void quantize_row(const u16* x, u8* out, float* scale_inv, u32 hidden, bool round_scale) {
  quantize_groups<kScaleGroup / 8>(
      x, out, hidden, [=](float amax) { return fp8_scale(amax, round_scale); },
      [=](u32 group, float inverse) { scale_inv[group] = inverse; });
}

DEV void quantize_row_ue8m0(const u16* x, u8* out, u32* packed, u32 hidden) {
  u8* const bytes = reinterpret_cast<u8*>(packed);  // little-endian words, as every processor here has them
  const u32 groups = hidden / kScaleGroup;
  quantize_groups<kScaleGroup / 8>(
      x, out, hidden, [](float amax) { return fp8_scale(amax, true); },
      [=](u32 group, float inverse) { bytes[group] = static_cast<u8>(ue8m0(inverse)); });
  if (const u32 i = groups + lane(); i < (groups + 3) / 4 * 4) bytes[i] = 0;
}

DEV void quantize_row_mxfp8(const u16* x, u8* out, u8* exponents, u32 hidden) {
  quantize_groups<kMxfp8Group / 8>(
      x, out, hidden, [](float amax) { return mxfp8_scale(amax); },
      [=](u32 group, float inverse) { exponents[group] = static_cast<u8>(ue8m0(inverse)); });
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

template <u32 kInFlight = kRowsInFlight>
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
    for (u32 first = 0; first < a.count; first += kInFlight) {
      u128 raw[kInFlight];
      UCCL_UNROLL
      for (u32 j = 0; j < kInFlight; ++j)
        raw[j] = first + j < a.count ? ld_nc(reinterpret_cast<const u128*>(a.rows[first + j]) + unit) : u128{0, 0};
      UCCL_UNROLL
      for (u32 j = 0; j < kInFlight; ++j) {
        if (first + j >= a.count) break;
        unpack_bf16(raw[j], f);
        if (a.weights) {
          const float w = a.weights[first + j];
          UCCL_UNROLL
          for (u32 i = 0; i < 8; ++i) acc[i] = fma_(f[i], w, acc[i]);
        } else {
          UCCL_UNROLL
          for (u32 i = 0; i < 8; ++i) acc[i] += f[i];
        }
      }
    }
    st_na(reinterpret_cast<u128*>(a.out) + unit, pack_bf16(acc));
  }
}

// A lane takes 16 channels: the codes, 8 or 16 bytes.
template <RowFormat kFormat>
DEV u128 load_codes(const u8* row, u32 unit) {
  if constexpr (row_code(kFormat).bits == 4) return u128{reinterpret_cast<const u64*>(row)[unit], 0};
  return ld_nc(reinterpret_cast<const u128*>(row) + unit);
}
template <RowFormat kFormat>
DEV float code_value(u128 codes, u32 i) {
  if constexpr (row_code(kFormat).bits == 4) return e2m1_to_f(static_cast<u32>(codes.lo >> 4 * i) & 15u);
  return e4m3_to_f(static_cast<u8>((i < 8 ? codes.lo : codes.hi) >> 8 * (i % 8)));
}

template <RowFormat kFormat>
DEV void reduce_coded_rows(const CodedRows& a) {
  for (u32 unit = lane(); unit < a.hidden / 16; unit += kWarp) {
    float acc[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    for (u32 first = 0; first < a.count; first += kRowsInFlight) {
      u128 codes[kRowsInFlight];
      float scales[kRowsInFlight];
      UCCL_UNROLL
      for (u32 j = 0; j < kRowsInFlight; ++j) {
        const bool on = first + j < a.count;
        codes[j] = on ? load_codes<kFormat>(a.rows[first + j], unit) : u128{0, 0};
        scales[j] = on ? block_scale<kFormat>(a, a.rows[first + j], unit * 16) : 0.0f;
      }
      UCCL_UNROLL
      for (u32 j = 0; j < kRowsInFlight; ++j) {
        if (first + j >= a.count) break;
        const float w = a.weights[first + j];
        UCCL_UNROLL
        for (u32 i = 0; i < 16; ++i) acc[i] = fma_(code_value<kFormat>(codes[j], i) * scales[j], w, acc[i]);
      }
    }
    st_na(reinterpret_cast<u128*>(a.out) + 2 * unit, pack_bf16(acc));
    st_na(reinterpret_cast<u128*>(a.out) + 2 * unit + 1, pack_bf16(acc + 8));
  }
}

}  // namespace uccl::simt::lanes
