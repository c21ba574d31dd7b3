// The row helpers written once over a vector type; vector_<level>.cpp includes this after it has defined
//   VECTOR_FN   `static inline` and the target attribute of its instructions
//   V           kLanes floats; load (bf16 to float), round (float to bf16), put and put_past (what round gave, through
//               the caches and past them), finish (what was put past them), store_e4m3, load_e4m3, set, zero, abs,
//               max, add, mul, fma, largest (of the lanes)
// Everything here is static, so that no code of one level is merged with that of another.
//
// The compiler may unroll and reorder; it may not change a rounding (no -ffast-math, -ffp-contract=off).
#include "kernels/device/fp8.h"
#include "kernels/host/vector.h"
#include "kernels/host/vector_table.h"

namespace uccl::simt::host {
namespace {

template <u32 kChannels>
VECTOR_FN void quantize_channels(const u16* x, u8* out, bool round_scale, float* scale_inv) {
  constexpr u32 kVectors = kChannels / V::kLanes;
  V::F f[kVectors];
  V::F amax = V::zero();
  for (u32 i = 0; i < kVectors; ++i) {
    f[i] = V::load(x + i * V::kLanes);
    amax = V::max(V::abs(f[i]), amax);  // NaN in the first operand is ignored, as fmax_ does
  }
  const float most = V::largest(amax);
  const Fp8Scale s = kChannels == kMxfp8Group ? mxfp8_scale(most) : fp8_scale(most, round_scale);
  const V::F scale = V::set(s.scale);
  for (u32 i = 0; i < kVectors; ++i) V::store_e4m3(out + i * V::kLanes, V::mul(f[i], scale));
  *scale_inv = s.scale_inv;
}
VECTOR_FN void quantize_group(const u16* x, u8* out, bool round_scale, float* scale_inv) {
  quantize_channels<kScaleGroup>(x, out, round_scale, scale_inv);
}
VECTOR_FN void quantize_mxfp8(const u16* x, u8* out, float* scale_inv) {
  quantize_channels<kMxfp8Group>(x, out, true, scale_inv);
}

// A CPU's own prefetching follows each of up to kMaxTopk rows at once, but not across a page: 4 % of a combine on an EPYC.
constexpr u32 kAheadBytes = 256;

// kVectors vectors of columns at once: with 64 bytes of each row a turn, the rows stream.
template <u32 kVectors, bool kPast>
VECTOR_FN void reduce_columns(const ReduceArgs& a, u32 first) {
  V::F acc[kVectors];
  for (u32 i = 0; i < kVectors; ++i) acc[i] = a.bias0 ? V::load(a.bias0 + first + i * V::kLanes) : V::zero();
  if (a.bias1)
    for (u32 i = 0; i < kVectors; ++i) acc[i] = V::add(acc[i], V::load(a.bias1 + first + i * V::kLanes));
  for (u32 r = 0; r < a.count; ++r) {
    const u16* const row = a.rows[r] + first;
    __builtin_prefetch(reinterpret_cast<const u8*>(row) + kAheadBytes);
    if (a.weights) {
      const V::F w = V::set(a.weights[r]);
      for (u32 i = 0; i < kVectors; ++i) acc[i] = V::fma(V::load(row + i * V::kLanes), w, acc[i]);
    } else {
      for (u32 i = 0; i < kVectors; ++i) acc[i] = V::add(acc[i], V::load(row + i * V::kLanes));
    }
  }
  for (u32 i = 0; i < kVectors; ++i) {
    u16* const to = a.out + first + i * V::kLanes;
    if constexpr (kPast)
      V::put_past(to, V::round(acc[i]));
    else
      V::put(to, V::round(acc[i]));
  }
}

template <bool kPast>
VECTOR_FN void reduce_row(const ReduceArgs& a) {
  constexpr u32 kAtOnce = 32 / V::kLanes;
  u32 c = 0;
  for (; c + 32 <= a.hidden; c += 32) reduce_columns<kAtOnce, kPast>(a, c);
  for (; c + V::kLanes <= a.hidden; c += V::kLanes) reduce_columns<1, kPast>(a, c);
  if (c < a.hidden) reduce_tail(a, c);
  if constexpr (kPast) V::finish();
}

// Columns [first, first + 32): no more than two blocks of any format.
template <RowFormat kFormat>
VECTOR_FN void reduce_coded_columns(const CodedRows& a, u32 first) {
  constexpr RowCode code = row_code(kFormat);
  constexpr u32 kVectors = 32 / V::kLanes, kBlocks = code.block() < 32 ? 32 / code.block() : 1;
  V::F acc[kVectors];
  for (u32 i = 0; i < kVectors; ++i) acc[i] = V::zero();
  for (u32 r = 0; r < a.count; ++r) {
    const u8* codes = a.rows[r] + first * code.bits / 8;
    __builtin_prefetch(codes + kAheadBytes);
    u8 wide[32];
    if constexpr (code.bits == 4) {
      widen_e2m1(codes, wide);
      codes = wide;
    }
    const V::F w = V::set(a.weights[r]);
    for (u32 b = 0; b < kBlocks; ++b) {
      const V::F scale = V::set(block_scale<kFormat>(a, a.rows[r], first + b * code.block()));
      for (u32 i = b * kVectors / kBlocks; i < (b + 1) * kVectors / kBlocks; ++i)
        acc[i] = V::fma(V::mul(V::load_e4m3(codes + i * V::kLanes), scale), w, acc[i]);
    }
  }
  for (u32 i = 0; i < kVectors; ++i) V::put(a.out + first + i * V::kLanes, V::round(acc[i]));
}

template <RowFormat kFormat>
VECTOR_FN void reduce_coded(const CodedRows& a) {
  for (u32 c = 0; c < a.hidden; c += 32) reduce_coded_columns<kFormat>(a, c);
}

VECTOR_FN void reduce_whole(const ReduceArgs& a) {
  if (a.past_caches)
    reduce_row<true>(a);
  else
    reduce_row<false>(a);
}

constexpr VectorTable kLevel{quantize_group,
                             quantize_mxfp8,
                             reduce_whole,
                             reduce_coded<RowFormat::kFp8>,
                             reduce_coded<RowFormat::kMxfp8>,
                             reduce_coded<RowFormat::kNvfp4Row>};

}  // namespace
}  // namespace uccl::simt::host
