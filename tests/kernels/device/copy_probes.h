// The row copies that a program can choose from, one kernel each, for measuring them against each other on a GPU
// (bench/device) and for looking at their instructions (test_copy_bulk.py).
#pragma once
#include "kernels/device/copy_bulk.h"
#include "kernels/device/copy_lanes.h"
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
template <class Copy>
DEV void copy_rows_with(const CopyRowsArgs& a, Copy copy) {
  const u32 warps = simt::nbid() * simt::num_warps();
  for (u32 i = simt::bid() * simt::num_warps() + simt::warp(); i < a.rows; i += warps) {
    const u64 from = a.order != nullptr ? a.order[i] : i;
    copy(a.to + i * a.row_bytes, a.from + from * a.row_bytes, a.row_bytes);
    simt::sync_warp();
  }
}

KERNEL KERNEL_BOUNDS(512) copy_rows_plain(CopyRowsArgs a) {
  copy_rows_with(a, [](u8* to, const u8* from, u64 n) { simt::lanes::copy_row(to, from, n); });
}
KERNEL KERNEL_BOUNDS(512) copy_rows_hinted(CopyRowsArgs a) {
  copy_rows_with(a, [](u8* to, const u8* from, u64 n) { simt::hinted::copy_row(to, from, n); });
}
KERNEL KERNEL_BOUNDS(512) copy_rows_bulk(CopyRowsArgs a) {
  copy_rows_with(a, [](u8* to, const u8* from, u64 n) { simt::bulk::copy_row(to, from, n); });
}

}  // namespace uccl
