// Row helpers: one warp copies, zeroes, quantises or reduces one row. Warp-collective, every lane with the same
// arguments; they synchronise nothing: sync_warp() before another lane reads the result, and before the call when other
// lanes wrote the input.
//
// Rows are 16-byte aligned and a multiple of 16 bytes. On GPUs they are lane code (copy_lanes.h); on a CPU lane 0 does
// the warp's work with vector instructions (kernels/host/vector.h) and gives the same bytes.
#pragma once
#include "kernels/device/copy_lanes.h"
#include "kernels/device/fp8.h"
#include "kernels/device/simt.h"
#ifdef UCCL_SIMT_HOST
#include "kernels/host/copy_out.h"
#include "kernels/host/shared_store.h"
#include "kernels/host/vector.h"
#endif

namespace uccl::simt {

DEV void copy_row(u8* dst, const u8* src, u64 bytes) {
#ifdef UCCL_SIMT_HOST
  if (lane() == 0) std::memcpy(dst, src, bytes);
#else
  lanes::copy_row(dst, src, bytes);
#endif
}

// From this size on a call's results are copied past a CPU's caches: more than its share of them, on any.
inline constexpr u64 kLargeResultBytes = 4u << 20;

// copy_row to where a call leaves about `total_bytes` in all, so that a row is out of the caches before it is read.
DEV void copy_row_out(u8* dst, const u8* src, u64 bytes, u64 total_bytes) {
#ifdef UCCL_SIMT_HOST
  if (total_bytes >= kLargeResultBytes) {
    if (lane() == 0) host::copy_out(dst, src, bytes);
    return;
  }
#endif
  (void)total_bytes;
  copy_row(dst, src, bytes);
}

// copy_row to memory that other ranks of the node read and this one writes again, of which about `total_bytes` are
// written before the first is read; 0: not known, or little.
DEV void copy_row_shared(u8* dst, const u8* src, u64 bytes, u64 total_bytes = 0) {
#ifdef UCCL_SIMT_HOST
  if (total_bytes < kLargeResultBytes) {
    if (lane() == 0) host::store_shared(dst, src, bytes);
    return;
  }
#endif
  copy_row_out(dst, src, bytes, total_bytes);
}

DEV void zero_row(u8* dst, u64 bytes) {
#ifdef UCCL_SIMT_HOST
  if (lane() == 0) std::memset(dst, 0, bytes);
#else
  lanes::zero_row(dst, bytes);
#endif
}

// bf16 row to e4m3 and one float a group of 128 channels. `hidden` is a multiple of 128.
DEV void quantize_row(const u16* x, u8* out, float* scale_inv, u32 hidden, bool round_scale) {
#ifdef UCCL_SIMT_HOST
  if (lane() == 0) host::quantize_row(x, out, scale_inv, hidden, round_scale);
#else
  lanes::quantize_row(x, out, scale_inv, hidden, round_scale);
#endif
}

// The same with power-of-two scales, of which only the exponents are kept, packed as pack_ue8m0 does.
DEV void quantize_row_ue8m0(const u16* x, u8* out, u32* packed, u32 hidden) {
#ifdef UCCL_SIMT_HOST
  if (lane() == 0) host::quantize_row_ue8m0(x, out, packed, hidden);
#else
  lanes::quantize_row_ue8m0(x, out, packed, hidden);
#endif
}

// bf16 row to MXFP8: e4m3 and an exponent a group of 32 channels. `hidden` is a multiple of 32.
DEV void quantize_row_mxfp8(const u16* x, u8* out, u8* exponents, u32 hidden) {
#ifdef UCCL_SIMT_HOST
  if (lane() == 0) host::quantize_row_mxfp8(x, out, exponents, hidden);
#else
  lanes::quantize_row_mxfp8(x, out, exponents, hidden);
#endif
}

// The exponents of `groups` power-of-two scales, four a word, first in the low byte; the last word is filled with 0.
DEV void pack_ue8m0(const float* scale_inv, u32* packed, u32 groups) {
  for (u32 w = lane(); w < (groups + 3) / 4; w += kWarp) {
    u32 word = 0;
    for (u32 i = 0; i < 4 && w * 4 + i < groups; ++i) word |= ue8m0(scale_inv[w * 4 + i]) << 8 * i;
    packed[w] = word;
  }
}

// Up to two rows that a sum starts from.
struct RowBias {
  const u16* first = nullptr;
  const u16* second = nullptr;
};

// out = bf16(bias.first + bias.second + sum of rows[i] * weights[i]), summed in fp32 in this order with one fused multiply-add a
// row (a plain add when weights is null) and one rounding at the end. `hidden` is a multiple of 8; count may be 0.
// `rows` and `weights` are the warp's own copy (shared memory or registers).
DEV void reduce_rows(u16* out, const u16* const* rows, const float* weights, u32 count, u32 hidden,
                     const RowBias& bias = {}) {
#ifdef UCCL_SIMT_HOST
  if (lane() == 0) host::reduce_rows(host::ReduceArgs{out, rows, weights, count, hidden, bias.first, bias.second});
#else
  lanes::reduce_rows(lanes::ReduceArgs{out, rows, weights, count, hidden, bias.first, bias.second});
#endif
}

// reduce_rows without weights, of rows that may lie in other GPUs.
DEV void sum_rows(u16* out, const u16* const* rows, u32 count, u32 hidden, const RowBias& bias = {}) {
#ifdef UCCL_SIMT_HOST
  reduce_rows(out, rows, nullptr, count, hidden, bias);
#else
  lanes::reduce_rows<lanes::kFarRowsInFlight>(
      lanes::ReduceArgs{out, rows, nullptr, count, hidden, bias.first, bias.second});
#endif
}

// out = bf16(sum of code * scale * weights[i]), as reduce_rows sums: of rows in kFormat.
template <RowFormat kFormat>
DEV void reduce_coded_rows(const CodedRows& a) {
#ifdef UCCL_SIMT_HOST
  if (lane() == 0) host::reduce_coded_rows(kFormat, a);
#else
  lanes::reduce_coded_rows<kFormat>(a);
#endif
}

// sum_rows, to where a call leaves about `total_bytes` in all (copy_row_out).
DEV void sum_rows_out(u16* out, const u16* const* rows, u32 count, u32 hidden, const RowBias& bias, u64 total_bytes) {
#ifdef UCCL_SIMT_HOST
  const bool past = total_bytes >= kLargeResultBytes;
  if (lane() == 0)
    host::reduce_rows(host::ReduceArgs{out, rows, nullptr, count, hidden, bias.first, bias.second, past});
#else
  (void)total_bytes;
  sum_rows(out, rows, count, hidden, bias);
#endif
}

}  // namespace uccl::simt

namespace uccl {
using simt::copy_row;
using simt::copy_row_out;
using simt::copy_row_shared;
using simt::pack_ue8m0;
using simt::quantize_row;
using simt::quantize_row_mxfp8;
using simt::quantize_row_ue8m0;
using simt::reduce_coded_rows;
using simt::reduce_rows;
using simt::RowBias;
using simt::sum_rows;
using simt::sum_rows_out;
using simt::zero_row;
}  // namespace uccl
