// The level that every CPU has: one float at a time, with a true fused multiply-add (libm's where there is no
// instruction).
#include <cmath>

#include "kernels/device/fp8.h"
#include "kernels/host/vector_table.h"

namespace uccl::simt::host {
namespace {

void quantize_group(const u16* x, u8* out, bool round_scale, float* scale_inv) {
  float amax = 0;
  for (u32 i = 0; i < kScaleGroup; ++i) amax = fmax_(amax, fabs_(bf16_to_f(x[i])));
  const Fp8Scale s = fp8_scale(amax, round_scale);
  for (u32 i = 0; i < kScaleGroup; ++i) out[i] = static_cast<u8>(e4m3_software(bf16_to_f(x[i]) * s.scale));
  *scale_inv = s.scale_inv;
}

u16 reduce_column(const ReduceArgs& a, u32 c) {
  float acc = a.bias0 ? bf16_to_f(a.bias0[c]) : 0.f;
  if (a.bias1) acc += bf16_to_f(a.bias1[c]);
  for (u32 r = 0; r < a.count; ++r) {
    const float value = bf16_to_f(a.rows[r][c]);
    acc = a.weights ? fma_(value, a.weights[r], acc) : acc + value;
  }
  return f_to_bf16(acc);
}

void reduce_whole(const ReduceArgs& a) { reduce_tail(a, 0); }

void reduce_fp8(const Fp8ReduceArgs& a) {
  for (u32 c = 0; c < a.hidden; ++c) {
    float acc = 0.f;
    for (u32 r = 0; r < a.count; ++r) {
      const float* const scales = reinterpret_cast<const float*>(a.rows[r] + a.scales_at);
      acc = fma_(e4m3_to_f(a.rows[r][c]) * scales[c / kScaleGroup], a.weights[r], acc);
    }
    a.out[c] = f_to_bf16(acc);
  }
}

constexpr VectorTable kTable{quantize_group, reduce_whole, reduce_fp8};

}  // namespace

void reduce_tail(const ReduceArgs& a, u32 first) {
  for (u32 c = first; c < a.hidden; ++c) a.out[c] = reduce_column(a, c);
}

const VectorTable* scalar_table() { return &kTable; }

}  // namespace uccl::simt::host
