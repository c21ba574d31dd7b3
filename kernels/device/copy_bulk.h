// Other ways to copy a row, with lanes::copy_row's contract: `hinted` reads past L2's ordinary replacement, `bulk` lets
// the copy engine of sm_90 and later move it through shared memory. A program takes one with -DUCCL_COPY_ROWS=hinted (or
// bulk); lanes, the plain one, is the default until a measurement (copy_rows_* in tests/kernels/device/copy_probes.h)
// says otherwise. Where a processor has neither, both are the plain one.
#pragma once
#include "kernels/device/copy_lanes.h"
#include "kernels/device/simt.h"

namespace uccl::simt::hinted {

// Rows are read once: their lines in L2 are the first to go. Eight loads in flight a lane.
DEV void copy_row(u8* dst, const u8* src, u64 bytes) {
  constexpr u32 kInFlight = 8;
  auto* const to = reinterpret_cast<u128*>(dst);
  const auto* const from = reinterpret_cast<const u128*>(src);
  const u64 units = bytes / sizeof(u128), policy = read_once_policy();
  u64 i = lane();
  for (; i + (kInFlight - 1) * kWarp < units; i += kInFlight * kWarp) {
    u128 unit[kInFlight];
    UCCL_UNROLL
    for (u32 j = 0; j < kInFlight; ++j) unit[j] = ld_once(from + i + j * kWarp, policy);
    UCCL_UNROLL
    for (u32 j = 0; j < kInFlight; ++j) st_na(to + i + j * kWarp, unit[j]);
  }
  for (; i < units; i += kWarp) st_na(to + i, ld_once(from + i, policy));
}

}  // namespace uccl::simt::hinted

namespace uccl::simt::bulk {

#if defined(UCCL_SIMT_BULK)
inline constexpr u32 kWarps = 4;  // of a block that have stages: what the row kernels are launched with
inline constexpr u32 kStages = 2;
inline constexpr u32 kStageBytes = 4096;

DEV void load(u8* stage, const u8* from, u32 bytes, u64* arrived) {
  expect_bulk(arrived, bytes);
  load_bulk(stage, from, bytes, arrived);
}

// Lane 0 does it all: while one stage is written out, the other is filled.
DEV void copy_row(u8* dst, const u8* src, u64 bytes) {
  UCCL_SIMT_SHARED u8 stages[kWarps][kStages][kStageBytes];
  UCCL_SIMT_SHARED u64 arrived[kWarps][kStages];
  const u32 w = warp();
  if (w >= kWarps) return lanes::copy_row(dst, src, bytes);
  if (lane() != 0 || bytes == 0) return;
  const u32 chunks = static_cast<u32>(ceil_div(bytes, kStageBytes));
  const auto size = [&](u32 c) { return static_cast<u32>(c + 1 < chunks ? kStageBytes : bytes - c * kStageBytes); };
  for (u32 s = 0; s < kStages; ++s) init_bulk(&arrived[w][s]);
  fence_bulk();  // the engine sees them, and the row as other lanes and processors left it
  for (u32 c = 0; c < kStages && c < chunks; ++c) load(stages[w][c], src + c * kStageBytes, size(c), &arrived[w][c]);
  for (u32 c = 0; c < chunks; ++c) {
    const u32 s = c % kStages;
    await_bulk(&arrived[w][s], c / kStages & 1);
    store_bulk(dst + c * kStageBytes, stages[w][s], size(c));
    if (c + kStages >= chunks) continue;
    await_stores_read();  // the stage may be filled again
    load(stages[w][s], src + (c + kStages) * kStageBytes, size(c + kStages), &arrived[w][s]);
  }
  await_stores();  // complete, and visible to this lane, which may now release them
  for (u32 s = 0; s < kStages; ++s) end_bulk(&arrived[w][s]);
}
#else
DEV void copy_row(u8* dst, const u8* src, u64 bytes) { lanes::copy_row(dst, src, bytes); }
#endif

}  // namespace uccl::simt::bulk
