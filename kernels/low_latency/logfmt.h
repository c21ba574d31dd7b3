// logfmt-10: combine rows in 10 bits a channel, on a logarithmic scale between the smallest and largest magnitude of
// each 128 channels. (facts: DeepEP's logfmt; granularity 128, sign + 9-bit code, 0 = zero.)
//
// A row on the wire: header (16 bytes: which units are encoded, length) | units. A unit is 1024 channels, or 512 when
// hidden is not a multiple of 1024. An encoded unit is (amin, amax) as bf16 per 128 channels, then the codes; a unit
// that logfmt cannot hold well (amax >= 1, or all magnitudes equal) stays bf16.
#pragma once
#include "kernels/device/simt.h"
#include "wire/types.h"

namespace uccl {

struct alignas(16) LogfmtHeader {
  u64 encoded;  // bit u: unit u is encoded
  u32 bytes;    // of the whole row, header included
  u32 unused;
};
inline constexpr u32 kLogfmtBlock = 128;
inline constexpr u32 kMaxLogfmtUnits = 64;

constexpr u32 logfmt_unit(u32 hidden) { return hidden % 1024 == 0 ? 1024 : 512; }
constexpr u32 logfmt_encoded_bytes(u32 unit) { return unit / kLogfmtBlock * 4 + unit * 10 / 8; }
// Where unit u begins in the row.
constexpr u32 logfmt_offset(u64 encoded, u32 u, u32 unit) {
  u32 before = 0;
  for (u64 m = encoded & low_bits(static_cast<int>(u)); m != 0; m &= m - 1) ++before;
  return static_cast<u32>(sizeof(LogfmtHeader)) + before * logfmt_encoded_bytes(unit) + (u - before) * unit * 2;
}

struct LogScale {
  float log_min, step;
};
// One 128-channel block: the scale that both ends compute from amin and amax.
DEV LogScale log_scale(float amin, float amax) {
  const float log_max = simt::log2_(amax), log_min = simt::log2_(amin);
  return LogScale{log_min, (log_max - log_min) / 510.0f};
}
DEV u32 logfmt_code(float x, const LogScale& s) {
  const float magnitude = simt::fabs_(x);
  if (magnitude == 0.0f) return 0;
  const float round = 2.0f - simt::log2_((1.0f + simt::exp2_(s.step)) / 2.0f) / s.step;
  const float code = simt::floor_(simt::fmax_(0.0f, (simt::log2_(magnitude) - s.log_min) / s.step + round));
  const u32 bits = code > 511.0f ? 511u : static_cast<u32>(code);
  return bits | (x < 0.0f ? 512u : 0u);
}
DEV float logfmt_value(u32 code, const LogScale& s) {
  const u32 magnitude = code & 511u;
  if (magnitude == 0) return 0.0f;
  const float v = simt::exp2_(static_cast<float>(magnitude - 1) * s.step + s.log_min);
  return code & 512u ? -v : v;
}

DEV float warp_group_max(float v, u32 lanes) {
  for (u32 d = lanes / 2; d != 0; d /= 2) v = simt::fmax_(v, simt::shfl_xor(v, static_cast<int>(d)));
  return v;
}

// One warp encodes `hidden` bf16 channels at x into `out`; returns the row's bytes (the same in every lane).
DEV u32 logfmt_encode(const u16* x, u8* out, u32 hidden) {
  const u32 unit = logfmt_unit(hidden), units = hidden / unit, chunk = unit / simt::kWarp;
  const u32 lanes = kLogfmtBlock / chunk, lane = static_cast<u32>(simt::lane());
  u64 encoded = 0;
  for (u32 u = 0; u < units; ++u) {
    const u16* mine = x + u * unit + lane * chunk;
    float amax = 0.0f, negative_min = -3.4e38f;
    for (u32 i = 0; i < chunk; ++i) {
      const float v = simt::fabs_(simt::bf16_to_f(mine[i]));
      amax = simt::fmax_(amax, v);
      negative_min = simt::fmax_(negative_min, -v);
    }
    amax = warp_group_max(amax, lanes);
    const float amin = simt::fmax_(-warp_group_max(negative_min, lanes), amax * 0x1p-32f);
    const bool fits = amax < 1.0f && amax > 0x1p-90f && amin < amax;
    const bool all = simt::ballot(!fits) == 0;
    u8* to = out + logfmt_offset(encoded, u, unit);
    if (!all) {
      for (u32 i = 0; i < chunk; ++i) reinterpret_cast<u16*>(to)[lane * chunk + i] = mine[i];
      continue;
    }
    encoded |= 1ull << u;
    if (lane % lanes == 0) {
      u16* pair = reinterpret_cast<u16*>(to) + lane / lanes * 2;
      pair[0] = simt::f_to_bf16(amin);
      pair[1] = simt::f_to_bf16(amax);
    }
    const LogScale s = log_scale(amin, amax);
    u16* codes = reinterpret_cast<u16*>(to + unit / kLogfmtBlock * 4 + lane * chunk * 10 / 8);
    for (u32 i = 0; i < chunk; i += 8) {  // eight codes fill five 16-bit words
      u64 low = 0, high = 0;
      for (u32 j = 0; j < 6; ++j) low |= static_cast<u64>(logfmt_code(simt::bf16_to_f(mine[i + j]), s)) << 10 * j;
      for (u32 j = 6; j < 8; ++j)
        high |= static_cast<u64>(logfmt_code(simt::bf16_to_f(mine[i + j]), s)) << 10 * (j - 6);
      low |= high << 60;
      high >>= 4;
      for (u32 w = 0; w < 4; ++w) codes[i / 8 * 5 + w] = static_cast<u16>(low >> 16 * w);
      codes[i / 8 * 5 + 4] = static_cast<u16>(high);
    }
  }
  const u32 bytes = logfmt_offset(encoded, units, unit);
  if (lane == 0) *reinterpret_cast<LogfmtHeader*>(out) = LogfmtHeader{encoded, bytes, 0};
  return bytes;
}

// One lane: adds weight * value of its `chunk` channels of unit u to acc.
DEV void logfmt_accumulate(const u8* row, u32 u, u32 unit, float weight, float* acc) {
  const u32 chunk = unit / simt::kWarp, lane = static_cast<u32>(simt::lane());
  const u64 encoded = reinterpret_cast<const LogfmtHeader*>(row)->encoded;
  const u8* from = row + logfmt_offset(encoded, u, unit);
  if (!(encoded >> u & 1)) {
    const u16* v = reinterpret_cast<const u16*>(from) + lane * chunk;
    for (u32 i = 0; i < chunk; ++i) acc[i] = simt::fma_(simt::bf16_to_f(v[i]), weight, acc[i]);
    return;
  }
  const u16* pair = reinterpret_cast<const u16*>(from) + lane * chunk / kLogfmtBlock * 2;
  const LogScale s = log_scale(simt::bf16_to_f(pair[0]), simt::bf16_to_f(pair[1]));
  const u16* codes = reinterpret_cast<const u16*>(from + unit / kLogfmtBlock * 4 + lane * chunk * 10 / 8);
  for (u32 i = 0; i < chunk; i += 8) {
    const u16* w = codes + i / 8 * 5;
    const u64 low = w[0] | static_cast<u64>(w[1]) << 16 | static_cast<u64>(w[2]) << 32 | static_cast<u64>(w[3]) << 48;
    const u64 high = low >> 60 | static_cast<u64>(w[4]) << 4;
    for (u32 j = 0; j < 8; ++j) {
      const u32 code = static_cast<u32>(j < 6 ? low >> 10 * j : high >> 10 * (j - 6)) & 1023u;
      acc[i + j] = simt::fma_(logfmt_value(code, s), weight, acc[i + j]);
    }
  }
}

}  // namespace uccl
