// The row helpers of kernels/device/copy.h for a CPU: the same bytes as the lane code, with vector instructions. Which
// ones is decided once from the CPU; a setter lets tests run every level that the CPU has.
#pragma once
#include "kernels/device/coded_rows.h"
#include "wire/types.h"

namespace uccl::simt::host {

enum class VectorLevel : u32 { kScalar = 0, kNeon, kAvx2, kAvx512 };

VectorLevel best_vector_level();
VectorLevel vector_level();
// For tests, between launches. False, and nothing changes, when this CPU or build does not have the level.
bool set_vector_level(VectorLevel level);

struct ReduceArgs {
  u16* out;
  const u16* const* rows;
  const float* weights;  // null: plain sums
  u32 count;
  u32 hidden;
  const u16* bias0;  // or null
  const u16* bias1;  // or null
  bool past_caches = false;  // out is not read soon (copy_out.h); 16-byte aligned then
};

void quantize_row(const u16* x, u8* out, float* scale_inv, u32 hidden, bool round_scale);
void quantize_row_ue8m0(const u16* x, u8* out, u32* packed, u32 hidden);
void quantize_row_mxfp8(const u16* x, u8* out, u8* exponents, u32 hidden);
void reduce_rows(const ReduceArgs& args);
// kFp8, kMxfp8 and kNvfp4Row.
void reduce_coded_rows(RowFormat format, const CodedRows& args);

}  // namespace uccl::simt::host
