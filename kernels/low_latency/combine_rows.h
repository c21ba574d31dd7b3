// Combine's rows in each format (kernels/layout/row_formats.h): one warp writes a row as it travels, and sums rows that
// have arrived.
#pragma once
#include "kernels/device/copy.h"
#include "kernels/device/fp4_row.h"
#include "kernels/layout/low_latency.h"
#include "kernels/low_latency/logfmt.h"

namespace uccl {

static_assert(LowLatencyLayout::row_in_slot(RowFormat::kBf16) == sizeof(LogfmtHeader));

// A row, or some of its channels: all of them where the format is logfmt.
struct RowPart {
  RowFormat format;
  u32 hidden, first, count;
  // Bytes before the part of the row, and from there to its scales and to the row's own float.
  DEV_MEMBER u32 codes_at() const {
    return format == RowFormat::kLogfmt ? 0 : static_cast<u32>(LowLatencyLayout::payload_bytes(first, format));
  }
  DEV_MEMBER u32 scales_at() const {
    return static_cast<u32>(LowLatencyLayout::payload_bytes(hidden, format) +
                            LowLatencyLayout::scale_bytes(first, format)) -
           codes_at();
  }
  DEV_MEMBER u32 tail_at() const { return static_cast<u32>(LowLatencyLayout::tail_at(hidden, format)) - codes_at(); }
};

// Channels that a piece of a row has a multiple of, so that each lane of a warp has something to do at once.
DEV u32 row_grain(RowFormat format, u32 hidden) {
  const u32 lanes = simt::kWarp == 1 ? 32 : simt::kWarp;
  return format == RowFormat::kLogfmt ? logfmt_unit(hidden) : format == RowFormat::kBf16 ? 8 * lanes : 16 * lanes;
}

// One warp: a part of the row `x`, written to where it belongs in `out`; returns the whole row's bytes. `total_bytes`:
// of what lies around it there, as copy_row_shared's. Whatever warp writes the first channels writes the row's own float.
DEV u64 write_row(const RowPart& part, const u16* x, u8* out, u64 total_bytes) {
  u8* const codes = out + part.codes_at();
  u8* const scales = codes + part.scales_at();
  const u16* const from = x + part.first;
  if (part.format == RowFormat::kLogfmt) {
    return align_up(logfmt_encode(x, out, part.hidden), 16);
  } else if (part.format == RowFormat::kFp8) {
    quantize_row(from, codes, reinterpret_cast<float*>(scales), part.count, false);
  } else if (part.format == RowFormat::kMxfp8) {
    quantize_row_mxfp8(from, codes, scales, part.count);
  } else if (part.format == RowFormat::kNvfp4Row) {
    const simt::Nvfp4RowScale own = simt::nvfp4_row_scale(largest_magnitude(x, part.hidden));
    quantize_row_nvfp4(Nvfp4RowArgs{from, codes, scales, part.count, own.global});
    if (part.first == 0 && simt::lane() == 0) *reinterpret_cast<float*>(codes + part.tail_at()) = own.inverse;
  } else {
    copy_row_shared(codes, reinterpret_cast<const u8*>(from), 2ull * part.count, total_bytes);
  }
  return LowLatencyLayout::row_bytes(part.hidden, part.format);
}

// What a sum is of: `rows` at the codes of a part's first channel, in the order of the sum.
struct GatheredRows {
  const u16* const* rows;
  const float* weights;
  u32 count;
};

// One warp, whose shares of a unit have kChunk channels each: channels [first, first + size), in whole units.
template <u32 kChunk>
DEV void sum_logfmt(u16* out, const GatheredRows& from, u32 first, u32 size) {
  constexpr u32 kUnit = kChunk * simt::kWarp * kLogfmtShares;
  for (u32 u = first / kUnit; u < (first + size) / kUnit; ++u)
    for (u32 s = 0; s < kLogfmtShares; ++s) {
      float acc[kChunk];
      UCCL_UNROLL
      for (u32 i = 0; i < kChunk; ++i) acc[i] = 0.0f;
      for (u32 r = 0; r < from.count; ++r)
        logfmt_accumulate<kChunk>(reinterpret_cast<const u8*>(from.rows[r]), u, logfmt_share(s), from.weights[r], acc);
      logfmt_store<kChunk>(out + u * kUnit + logfmt_share(s) * kChunk, acc);
    }
}

// One warp: the bf16 sum of a part of rows, at its place in the row `out`.
DEV void sum_rows(const RowPart& part, u16* out, const GatheredRows& from) {
  u16* const to = out + part.first;
  const CodedRows coded{to,
                        reinterpret_cast<const u8* const*>(from.rows),
                        from.weights,
                        from.count,
                        part.count,
                        part.scales_at(),
                        part.tail_at()};
  if (part.format == RowFormat::kBf16)
    reduce_rows(to, from.rows, from.weights, from.count, part.count);
  else if (part.format == RowFormat::kFp8)
    reduce_coded_rows<RowFormat::kFp8>(coded);
  else if (part.format == RowFormat::kMxfp8)
    reduce_coded_rows<RowFormat::kMxfp8>(coded);
  else if (part.format == RowFormat::kNvfp4Row)
    reduce_coded_rows<RowFormat::kNvfp4Row>(coded);
  else if (logfmt_unit(part.hidden) == 1024)
    sum_logfmt<logfmt_chunk(1024)>(out, from, part.first, part.count);
  else
    sum_logfmt<logfmt_chunk(512)>(out, from, part.first, part.count);
}

}  // namespace uccl
