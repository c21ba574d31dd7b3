// How rows of low latency travel: one table of their formats, for dispatch and combine, kernels, proxy and Python. A row
// is the codes of its channels, then a scale for each block of them; in one format then a float of the row's own.
#pragma once
#include "wire/types.h"

namespace uccl {

// Dispatch sends kBf16, kFp8, kFp8Ue8m0 and kNvfp4, whose scales a float of the whole call multiplies. Combine sends
// kBf16, kLogfmt, kFp8, kMxfp8 and kNvfp4Row.
enum class RowFormat : u32 { kBf16 = 0, kFp8, kFp8Ue8m0, kNvfp4, kLogfmt, kMxfp8, kNvfp4Row };

struct RowCode {
  u32 unit;  // a row has a multiple of so many channels
  u32 bits;  // of a channel's code
  u32 block_log2;  // of the channels that share a scale; 0: there are none
  u32 scale_bytes;  // of one scale
  u32 tail_bytes;  // of the row's own float, behind the scales
  constexpr u32 block() const { return 1u << block_log2; }
};

constexpr RowCode row_code(RowFormat format) {
  switch (format) {
    case RowFormat::kFp8: return {128, 8, 7, 4, 0};  // e4m3, scales are floats
    case RowFormat::kFp8Ue8m0: return {128, 8, 7, 1, 0};  // e4m3, exponents
    case RowFormat::kNvfp4: return {64, 4, 4, 1, 0};  // e2m1, e4m3
    case RowFormat::kMxfp8: return {32, 8, 5, 1, 0};  // e4m3, exponents
    case RowFormat::kNvfp4Row: return {64, 4, 4, 1, 4};  // e2m1, e4m3
    case RowFormat::kLogfmt: return {512, 16, 0, 0, 0};  // or fewer bits: each row says how long it is (logfmt.h)
    case RowFormat::kBf16: break;
  }
  return {8, 16, 0, 0, 0};
}
inline constexpr u32 kScaleChannels = row_code(RowFormat::kFp8).block();

}  // namespace uccl
