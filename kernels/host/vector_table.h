// What the vector_<level>.cpp files offer to vector.cpp.
#pragma once
#include "kernels/host/vector.h"

namespace uccl::simt::host {

struct VectorTable {
  void (*quantize_group)(const u16* x, u8* out, bool round_scale, float* scale_inv);  // 128 channels
  void (*quantize_mxfp8)(const u16* x, u8* out, float* scale_inv);  // 32 channels
  void (*reduce)(const ReduceArgs& args);
  void (*reduce_fp8)(const CodedRows& args);
  void (*reduce_mxfp8)(const CodedRows& args);
  void (*reduce_nvfp4)(const CodedRows& args);
};

// Null where the build's processor family does not have the level; whether this CPU has it is vector.cpp's question.
const VectorTable* scalar_table();
const VectorTable* neon_table();
const VectorTable* avx2_table();
const VectorTable* avx512_table();

// Sixteen bytes of e2m1 codes as e4m3, which has all of their values.
inline void widen_e2m1(const u8* codes, u8* out) {
  for (u32 i = 0; i < 32; ++i) {
    const u32 code = codes[i / 2] >> 4 * (i % 2) & 15u, magnitude = code & 7u;
    const u32 wide = magnitude < 2 ? 0x30u * magnitude : 0x30u + 4 * magnitude;
    out[i] = static_cast<u8>(wide | (code & 8u) << 4);
  }
}

// Columns [first, hidden), fewer than a vector has lanes.
void reduce_tail(const ReduceArgs& args, u32 first);

}  // namespace uccl::simt::host
