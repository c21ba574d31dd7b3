// What the vector_<level>.cpp files offer to vector.cpp.
#pragma once
#include "kernels/host/vector.h"

namespace uccl::simt::host {

struct VectorTable {
  void (*quantize_group)(const u16* x, u8* out, bool round_scale, float* scale_inv);  // 128 channels
  void (*reduce)(const ReduceArgs& args);
  void (*reduce_fp8)(const Fp8ReduceArgs& args);
};

// Null where the build's processor family does not have the level; whether this CPU has it is vector.cpp's question.
const VectorTable* scalar_table();
const VectorTable* neon_table();
const VectorTable* avx2_table();
const VectorTable* avx512_table();

// Columns [first, hidden), fewer than a vector has lanes.
void reduce_tail(const ReduceArgs& args, u32 first);

}  // namespace uccl::simt::host
