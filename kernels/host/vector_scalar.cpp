// The level that every CPU has: one float at a time, with a true fused multiply-add (libm's where there is no
// instruction).
#include <cmath>

#include "kernels/device/fp8.h"
#include "kernels/host/vector_table.h"

namespace uccl::simt::host {
namespace {

template <u32 kChannels>
void quantize_channels(const u16* x, u8* out, bool round_scale, float* scale_inv) {
  float amax = 0;
  for (u32 i = 0; i < kChannels; ++i) amax = fmax_(amax, fabs_(bf16_to_f(x[i])));
  const Fp8Scale s = kChannels == kMxfp8Group ? mxfp8_scale(amax) : fp8_scale(amax, round_scale);
  for (u32 i = 0; i < kChannels; ++i) out[i] = static_cast<u8>(e4m3_software(bf16_to_f(x[i]) * s.scale));
  *scale_inv = s.scale_inv;
}
void quantize_mxfp8(const u16* x, u8* out, float* scale_inv) {
  quantize_channels<kMxfp8Group>(x, out, true, scale_inv);
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

template <RowFormat kFormat>
void reduce_coded(const CodedRows& a) {
  constexpr bool kNibbles = row_code(kFormat).bits == 4;
  for (u32 c = 0; c < a.hidden; ++c) {
    float acc = 0.f;
    for (u32 r = 0; r < a.count; ++r) {
      const u8* const row = a.rows[r];
      const float code = kNibbles ? e2m1_to_f(row[c / 2] >> 4 * (c % 2) & 15u) : e4m3_to_f(row[c]);
      acc = fma_(code * block_scale<kFormat>(a, row, c), a.weights[r], acc);
    }
    a.out[c] = f_to_bf16(acc);
  }
}

constexpr VectorTable kTable{quantize_channels<kScaleGroup>,
                             quantize_mxfp8,
                             reduce_whole,
                             reduce_coded<RowFormat::kFp8>,
                             reduce_coded<RowFormat::kMxfp8>,
                             reduce_coded<RowFormat::kNvfp4Row>};

}  // namespace

void reduce_tail(const ReduceArgs& a, u32 first) {
  for (u32 c = first; c < a.hidden; ++c) a.out[c] = reduce_column(a, c);
}

const VectorTable* scalar_table() { return &kTable; }

}  // namespace uccl::simt::host
