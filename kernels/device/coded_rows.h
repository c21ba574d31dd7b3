// Rows whose channels are e4m3 or e2m1 with a scale a block (kernels/layout/row_formats.h), as a sum reads them: what a
// code stands for, in lanes and on the host alike.
#pragma once
#include "kernels/device/fp4.h"
#include "kernels/device/fp8.h"
#include "kernels/layout/row_formats.h"

namespace uccl::simt {

static_assert(row_code(RowFormat::kFp8).block() == kScaleGroup && row_code(RowFormat::kMxfp8).block() == kMxfp8Group &&
              row_code(RowFormat::kNvfp4).block() == kNvfp4Group);

// A sum over channels of such rows. `hidden` is a multiple of 128, or of the format's unit where that is less.
struct CodedRows {
  u16* out;
  const u8* const* rows;  // at the code of the first channel
  const float* weights;
  u32 count;
  u32 hidden;
  u32 scales_at;  // bytes from there to its scale
  u32 tail_at;  // and to the row's own float, where the format has one
};

// What the codes of the block of channel `c` are multiplied by.
template <RowFormat kFormat>
DEV float block_scale(const CodedRows& a, const u8* row, u32 c) {
  constexpr RowCode code = row_code(kFormat);
  const u8* const at = row + a.scales_at + c / code.block() * code.scale_bytes;
  if constexpr (kFormat == RowFormat::kMxfp8)
    return ue8m0_to_f(*at);
  else if constexpr (kFormat == RowFormat::kNvfp4Row)
    return e4m3_to_f(*at) * *reinterpret_cast<const float*>(row + a.tail_at);
  else
    return *reinterpret_cast<const float*>(at);
}

}  // namespace uccl::simt

namespace uccl {
using simt::CodedRows;
}  // namespace uccl
