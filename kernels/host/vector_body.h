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

VECTOR_FN void quantize_group(const u16* x, u8* out, bool round_scale, float* scale_inv) {
  constexpr u32 kVectors = kScaleGroup / V::kLanes;
  V::F f[kVectors];
  V::F amax = V::zero();
  for (u32 i = 0; i < kVectors; ++i) {
    f[i] = V::load(x + i * V::kLanes);
    amax = V::max(V::abs(f[i]), amax);  // NaN in the first operand is ignored, as fmax_ does
  }
  const Fp8Scale s = fp8_scale(V::largest(amax), round_scale);
  const V::F scale = V::set(s.scale);
  for (u32 i = 0; i < kVectors; ++i) V::store_e4m3(out + i * V::kLanes, V::mul(f[i], scale));
  *scale_inv = s.scale_inv;
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

// Columns [first, first + 32) of fp8 rows: a quarter of a scale group.
VECTOR_FN void reduce_fp8_columns(const Fp8ReduceArgs& a, u32 first) {
  constexpr u32 kVectors = 32 / V::kLanes;
  V::F acc[kVectors];
  for (u32 i = 0; i < kVectors; ++i) acc[i] = V::zero();
  for (u32 r = 0; r < a.count; ++r) {
    const u8* const row = a.rows[r] + first;
    __builtin_prefetch(row + kAheadBytes);
    const V::F scale = V::set(reinterpret_cast<const float*>(a.rows[r] + a.scales_at)[first / kScaleGroup]);
    const V::F w = V::set(a.weights[r]);
    for (u32 i = 0; i < kVectors; ++i) acc[i] = V::fma(V::mul(V::load_e4m3(row + i * V::kLanes), scale), w, acc[i]);
  }
  for (u32 i = 0; i < kVectors; ++i) V::put(a.out + first + i * V::kLanes, V::round(acc[i]));
}

VECTOR_FN void reduce_fp8(const Fp8ReduceArgs& a) {
  for (u32 c = 0; c < a.hidden; c += 32) reduce_fp8_columns(a, c);
}

VECTOR_FN void reduce_whole(const ReduceArgs& a) {
  if (a.past_caches)
    reduce_row<true>(a);
  else
    reduce_row<false>(a);
}

}  // namespace
}  // namespace uccl::simt::host
