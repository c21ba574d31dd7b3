// logfmt-10: combine rows in 10 bits a channel, on a logarithmic scale between the smallest and largest magnitude of
// each 128 channels. (facts: DeepEP's logfmt; granularity 128, sign + 9-bit code, 0 = zero.)
//
// A row on the wire: header (16 bytes: which units are encoded, length) | units. A unit is 1024 channels, or 512 when
// hidden is not a multiple of 1024. An encoded unit is (amin, amax) as bf16 per 128 channels, then the codes; a unit
// that logfmt cannot hold well (amax >= 1, or all magnitudes equal) stays bf16. Everything in it is 16-byte aligned.
#pragma once
#include "kernels/device/copy_lanes.h"
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
  u64 bits = encoded & low_bits(static_cast<int>(u));  // counted pair by pair, then four, eight and all together
  bits -= bits >> 1 & 0x5555555555555555ull;
  bits = (bits & 0x3333333333333333ull) + (bits >> 2 & 0x3333333333333333ull);
  bits = (bits + (bits >> 4)) & 0x0f0f0f0f0f0f0f0full;
  const u32 before = static_cast<u32>(bits * 0x0101010101010101ull >> 56);
  return static_cast<u32>(sizeof(LogfmtHeader)) + before * logfmt_encoded_bytes(unit) + (u - before) * unit * 2;
}

// What every header that logfmt_encode writes fulfils, and a changed one does not.
DEV bool logfmt_is_whole(const u8* row, u32 hidden) {
  const LogfmtHeader& h = *reinterpret_cast<const LogfmtHeader*>(row);
  const u32 unit = logfmt_unit(hidden), units = hidden / unit;
  return (h.encoded & ~low_bits(static_cast<int>(units))) == 0 && h.bytes == logfmt_offset(h.encoded, units, unit);
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

// A share of a unit is kChunk neighbouring channels: 32, 16 or 8 by unit and warp width. A constant, so that they stay in
// registers. Their codes fill five words of 2 * kChunk bits. A lane has one share; the only lane of a warp has them all.
constexpr u32 kLogfmtShares = simt::kWarp == 1 ? 32 : 1;  // not `inline`, as in match.h
static constexpr u32 logfmt_chunk(u32 unit) { return unit / (simt::kWarp * kLogfmtShares); }
DEV u32 logfmt_share(u32 i) { return simt::lane() * kLogfmtShares + i; }

template <u32 kChunk>
struct LogfmtWord;
template <>
struct LogfmtWord<32> {
  using type = u64;
};
template <>
struct LogfmtWord<16> {
  using type = u32;
};
template <>
struct LogfmtWord<8> {
  using type = u16;
};

// kChunk bf16 values at `from`, which is 16-byte aligned.
template <u32 kChunk>
DEV void logfmt_load(const u16* from, float (&v)[kChunk]) {
  UCCL_UNROLL
  for (u32 i = 0; i < kChunk; i += 8)
    simt::lanes::unpack_bf16(simt::ld_nc(reinterpret_cast<const u128*>(from + i)), v + i);
}
template <u32 kChunk>
DEV void logfmt_store(u16* to, const float (&v)[kChunk]) {
  UCCL_UNROLL
  for (u32 i = 0; i < kChunk; i += 8) simt::st_na(reinterpret_cast<u128*>(to + i), simt::lanes::pack_bf16(v + i));
}

// One lane: kChunk codes of 10 bits, back to back.
template <u32 kChunk>
DEV void logfmt_pack(const float (&v)[kChunk], const LogScale& s, typename LogfmtWord<kChunk>::type* codes) {
  using Word = typename LogfmtWord<kChunk>::type;
  constexpr u32 kBits = 2 * kChunk;
  Word words[5] = {0, 0, 0, 0, 0};
  UCCL_UNROLL
  for (u32 i = 0; i < kChunk; ++i) {
    const u64 code = logfmt_code(v[i], s);
    const u32 at = 10 * i / kBits, shift = 10 * i % kBits;
    words[at] = static_cast<Word>(words[at] | code << shift);
    if (shift + 10 > kBits) words[at + 1] = static_cast<Word>(words[at + 1] | code >> (kBits - shift));
  }
  UCCL_UNROLL
  for (u32 w = 0; w < 5; ++w) codes[w] = words[w];
}
template <u32 kChunk>
DEV void logfmt_unpack(const typename LogfmtWord<kChunk>::type* codes, const LogScale& s, float (&v)[kChunk]) {
  constexpr u32 kBits = 2 * kChunk;
  u64 words[5];
  UCCL_UNROLL
  for (u32 w = 0; w < 5; ++w) words[w] = codes[w];
  UCCL_UNROLL
  for (u32 i = 0; i < kChunk; ++i) {
    const u32 at = 10 * i / kBits, shift = 10 * i % kBits;
    u64 code = words[at] >> shift;
    if (shift + 10 > kBits) code |= words[at + 1] << (kBits - shift);
    v[i] = logfmt_value(static_cast<u32>(code) & 1023u, s);
  }
}

// Every share's value becomes the largest of the kGroup neighbours that share its block's scale.
template <u32 kGroup>
DEV void logfmt_group_max(float (&v)[kLogfmtShares]) {
  if constexpr (kLogfmtShares != 1) {
    for (u32 first = 0; first < kLogfmtShares; first += kGroup) {
      float largest = v[first];
      for (u32 i = 1; i < kGroup; ++i) largest = simt::fmax_(largest, v[first + i]);
      for (u32 i = 0; i < kGroup; ++i) v[first + i] = largest;
    }
  } else if constexpr (kGroup != 1) {
    v[0] = simt::group_max<kGroup>(v[0]);
  }
}

// The smallest (negated) and largest magnitude of a share.
template <u32 kChunk>
DEV void logfmt_range(const float (&v)[kChunk], float* negative_min, float* amax) {
  *amax = 0.0f;
  *negative_min = -3.4e38f;
  UCCL_UNROLL
  for (u32 i = 0; i < kChunk; ++i) {
    const float magnitude = simt::fabs_(v[i]);
    *amax = simt::fmax_(*amax, magnitude);
    *negative_min = simt::fmax_(*negative_min, -magnitude);
  }
}

// One warp encodes all units of a row whose shares have kChunk channels each; returns which were encoded.
template <u32 kChunk>
DEV u64 logfmt_encode_units(const u16* x, u8* out, u32 units) {
  constexpr u32 kUnit = kChunk * simt::kWarp * kLogfmtShares, kGroup = kLogfmtBlock / kChunk;
  using Word = typename LogfmtWord<kChunk>::type;
  u64 encoded = 0;
  for (u32 u = 0; u < units; ++u) {
    float v[kLogfmtShares][kChunk], amax[kLogfmtShares], amin[kLogfmtShares];
    for (u32 s = 0; s < kLogfmtShares; ++s) {
      logfmt_load<kChunk>(x + u * kUnit + logfmt_share(s) * kChunk, v[s]);
      logfmt_range<kChunk>(v[s], &amin[s], &amax[s]);
    }
    logfmt_group_max<kGroup>(amax);
    logfmt_group_max<kGroup>(amin);
    bool fits = true;
    for (u32 s = 0; s < kLogfmtShares; ++s) {
      amin[s] = simt::fmax_(-amin[s], amax[s] * 0x1p-32f);
      fits = fits && amax[s] < 1.0f && amax[s] > 0x1p-90f && amin[s] < amax[s];
    }
    u8* to = out + logfmt_offset(encoded, u, kUnit);
    const bool encodes = simt::ballot(!fits) == 0;
    if (encodes) encoded |= 1ull << u;
    for (u32 s = 0; s < kLogfmtShares; ++s) {
      const u32 share = logfmt_share(s);
      if (!encodes) {
        logfmt_store<kChunk>(reinterpret_cast<u16*>(to) + share * kChunk, v[s]);
        continue;
      }
      if (share % kGroup == 0) {
        u16* pair = reinterpret_cast<u16*>(to) + share / kGroup * 2;
        pair[0] = simt::f_to_bf16(amin[s]);
        pair[1] = simt::f_to_bf16(amax[s]);
      }
      Word* const codes = reinterpret_cast<Word*>(to + kUnit / kLogfmtBlock * 4) + share * 5;
      logfmt_pack<kChunk>(v[s], log_scale(amin[s], amax[s]), codes);
    }
  }
  return encoded;
}

// One warp encodes `hidden` bf16 channels at x into `out`; returns the row's bytes (the same in every lane).
DEV u32 logfmt_encode(const u16* x, u8* out, u32 hidden) {
  const u32 unit = logfmt_unit(hidden), units = hidden / unit;
  const u64 encoded = unit == 1024 ? logfmt_encode_units<logfmt_chunk(1024)>(x, out, units)
                                   : logfmt_encode_units<logfmt_chunk(512)>(x, out, units);
  const u32 bytes = logfmt_offset(encoded, units, unit);
  if (simt::lane() == 0) *reinterpret_cast<LogfmtHeader*>(out) = LogfmtHeader{encoded, bytes, 0};
  return bytes;
}

// One lane: adds weight * value of the channels of a share of unit u to acc.
template <u32 kChunk>
DEV void logfmt_accumulate(const u8* row, u32 u, u32 share, float weight, float (&acc)[kChunk]) {
  constexpr u32 kUnit = kChunk * simt::kWarp * kLogfmtShares;
  const u64 encoded = reinterpret_cast<const LogfmtHeader*>(row)->encoded;
  const u8* from = row + logfmt_offset(encoded, u, kUnit);
  float v[kChunk];
  if (encoded >> u & 1) {
    using Word = typename LogfmtWord<kChunk>::type;
    const u16* pair = reinterpret_cast<const u16*>(from) + share * kChunk / kLogfmtBlock * 2;
    logfmt_unpack<kChunk>(reinterpret_cast<const Word*>(from + kUnit / kLogfmtBlock * 4) + share * 5,
                          log_scale(simt::bf16_to_f(pair[0]), simt::bf16_to_f(pair[1])), v);
  } else {
    logfmt_load<kChunk>(reinterpret_cast<const u16*>(from) + share * kChunk, v);
  }
  UCCL_UNROLL
  for (u32 i = 0; i < kChunk; ++i) acc[i] = simt::fma_(v[i], weight, acc[i]);
}

}  // namespace uccl
