// The row copy of the product's kernels by itself, for measuring it on a GPU (bench/device).
#pragma once
#include "kernels/device/copy.h"
#include "kernels/device/simt.h"

namespace uccl {

struct CopyRowsArgs {
  u8* to;          // [rows, row_bytes]
  const u8* from;  // [rows, row_bytes]
  const u32* order;  // [rows]: row i of the output is row order[i] of the input; null: as they lie
  u64 row_bytes;     // multiple of 16
  u32 rows, unused;
};

// Rows go round the warps of the grid, as in the product's kernels.
KERNEL KERNEL_BOUNDS(512) copy_rows(CopyRowsArgs a) {
  const u32 warps = simt::nbid() * simt::num_warps();
  for (u32 i = simt::bid() * simt::num_warps() + simt::warp(); i < a.rows; i += warps) {
    const u64 from = a.order != nullptr ? a.order[i] : i;
    copy_row(a.to + i * a.row_bytes, a.from + from * a.row_bytes, a.row_bytes);
    simt::sync_warp();
  }
}

}  // namespace uccl
