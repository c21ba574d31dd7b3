// Where low-latency rows live. Two sets of everything, by epoch parity.
//
// Dispatch keeps one row per token, not one per expert: a source stages its rows once; ranks of its node read them
// there, and each remote node gets them once, at the source's landing rank (topology.h), slot = token index. Receivers
// know from the routing block (the source's top-k ids) which rows are theirs, so rows carry no header. Combine keeps
// one row per (token, k) at the token's owner, stored there by load/store or by a write. Where it is reduced in the
// node first (combine_reduce.h), a landing rank also keeps one per (token, k) of each source that it stands for.
#pragma once
#include "kernels/layout/row_formats.h"
#include "wire/control.h"
#include "wire/limits.h"
#include "wire/types.h"

namespace uccl {

// Received NVFP4 scales of an expert, as tensor cores read them: u32 [tiles, words][32][4], a tile 128 rows, word w the
// scales of channels 64 w to 64 w + 63. Row 32 j + i of a tile is at [i][j].
struct Nvfp4Scales {
  static constexpr u64 kTileRows = 128;
  static constexpr u64 tiles(u64 rows) { return ceil_div(rows, kTileRows); }
  static constexpr u64 at(u64 row, u32 word, u32 words) {
    return (row / kTileRows * words + word) * kTileRows + row % 32 * 4 + row % kTileRows / 32;
  }
};

// In front of the top-k ids (i16, row-major [num_tokens, topk]) of a routing block: -1 where nothing is routed, or where
// the token has named that expert before. What the call is stands in its CallIdentity.
struct alignas(16) RoutingHeader {
  u32 num_tokens, topk;
  u64 unused;
};
static_assert(sizeof(RoutingHeader) == 16);

// In front of what a landing rank needs to sum a source's rows: float32 [num_tokens, topk] weights, then i16 ids of the
// same shape, as the caller gave them, or -1 where they name no expert.
struct alignas(16) WeightsHeader {
  u32 num_tokens, topk;
  u64 unused;
};
static_assert(sizeof(WeightsHeader) == 16);

struct LowLatencyLayout {
  static constexpr u64 kHeaderBytes = sizeof(ExpectHeader);
  u32 max_tokens = 0;  // M, tokens a rank and call
  u32 hidden = 0;
  u32 max_topk = 0;
  u32 num_landing_slots = 0;  // TopologyView::num_landing_slots(), 0 when there is one node
  u32 staging_rows = 0;  // combine rows on their way out, 0 when there is one node
  u32 num_ranks = 0;
  u64 base = 0;  // where this part starts in the data region, multiple of 128
  u32 reduces = 0;  // 1: with room for combines that are reduced in the node
  u32 unused = 0;

  // Of `channels` channels, in whole words. Scales lie behind the codes.
  static constexpr u64 scale_bytes(u32 channels, RowFormat f) {
    const RowCode c = row_code(f);
    return c.scale_bytes == 0 ? 0 : align_up(((u64{channels} + c.block() - 1) >> c.block_log2) * c.scale_bytes, 4);
  }
  // A row's codes.
  static constexpr u64 payload_bytes(u32 channels, RowFormat f) {
    return ceil_div(u64{channels} * row_code(f).bits, 8);
  }
  // Where the row's own float is, if it has one.
  static constexpr u64 tail_at(u32 hidden, RowFormat f) { return payload_bytes(hidden, f) + scale_bytes(hidden, f); }
  static constexpr u64 row_bytes(u32 hidden, RowFormat f) {
    return align_up(tail_at(hidden, f) + row_code(f).tail_bytes, 16);
  }
  static constexpr u64 routing_bytes(u32 tokens, u32 topk) {
    return align_up(sizeof(RoutingHeader) + 2ull * tokens * topk, 16);
  }
  static constexpr u64 weights_bytes(u32 tokens, u32 topk) {
    return align_up(sizeof(WeightsHeader) + 6ull * tokens * topk, 16);
  }
  // A combine row on the wire: bf16 or logfmt, either behind a 16-byte header, or shorter; never longer than this.
  constexpr u64 combine_row_bytes() const { return align_up(16 + 2ull * hidden, 16); }
  // Where the row begins in its slot: bf16 behind the place of logfmt's header, so that a slot has one size.
  static constexpr u64 row_in_slot(RowFormat f) { return f == RowFormat::kBf16 ? 16 : 0; }

  // Whether sums of a node may be encoded: a bf16 sum and the encoded one have a slot each.
  constexpr bool sums_encoded() const { return reduces != 0 && max_topk >= 2; }

  constexpr u64 rows_bytes() const { return align_up(max_tokens * row_bytes(hidden, RowFormat::kBf16), 128); }
  constexpr u64 routing_stride() const { return align_up(routing_bytes(max_tokens, max_topk), 128); }
  constexpr u64 source_bytes() const { return rows_bytes() + routing_stride(); }
  constexpr u64 slots_bytes() const {
    return align_up(static_cast<u64>(max_tokens) * max_topk * combine_row_bytes(), 128);
  }
  constexpr u64 headers_bytes() const {
    return align_up(static_cast<u64>(num_ranks) * (reduces ? 5 : 3) * kHeaderBytes, 128);
  }
  // Rows of one source that its landing rank sums, and the source's weights.
  constexpr u64 weights_stride() const { return align_up(weights_bytes(max_tokens, max_topk), 128); }
  constexpr u64 reduction_bytes() const {
    return reduces ? (1 + num_landing_slots) * weights_stride() + num_landing_slots * slots_bytes() : 0;
  }
  constexpr u64 set_bytes() const {
    return (1 + num_landing_slots) * source_bytes() + slots_bytes() + headers_bytes() + reduction_bytes();
  }
  constexpr u64 staging_bytes() const { return align_up(staging_rows * combine_row_bytes(), 128); }
  constexpr u64 bytes() const { return 2 * set_bytes() + staging_bytes(); }

  // Offsets in the data region, by epoch.
  constexpr u64 set(u64 epoch) const { return base + (epoch & 1) * set_bytes(); }
  constexpr u64 staged_rows(u64 epoch) const { return set(epoch); }
  constexpr u64 staged_routing(u64 epoch) const { return set(epoch) + rows_bytes(); }
  constexpr u64 landing_rows(u64 epoch, u32 slot) const { return set(epoch) + (1 + slot) * source_bytes(); }
  constexpr u64 landing_routing(u64 epoch, u32 slot) const { return landing_rows(epoch, slot) + rows_bytes(); }
  constexpr u64 combine_slot(u64 epoch, u64 slot) const {
    return set(epoch) + (1 + num_landing_slots) * source_bytes() + slot * combine_row_bytes();
  }
  // Outgoing ExpectHeaders: one per peer for dispatch (0), combine (1), announcements (2), and where there is room to
  // reduce, weights (3) and sums (4).
  constexpr u64 header(u64 epoch, u32 kind, u32 peer) const {
    return set(epoch) + (1 + num_landing_slots) * source_bytes() + slots_bytes() +
           (static_cast<u64>(kind) * num_ranks + peer) * kHeaderBytes;
  }
  constexpr u64 staged_weights(u64 epoch) const { return header(epoch, 0, 0) + headers_bytes(); }
  constexpr u64 landing_weights(u64 epoch, u32 slot) const {
    return staged_weights(epoch) + (1 + slot) * weights_stride();
  }
  // Slot of row `row` (token * topk + k) of the source in landing slot `slot`; as at an owner, the row lies behind a
  // header.
  constexpr u64 landing_combine_slot(u64 epoch, u32 slot, u64 row) const {
    return landing_weights(epoch, num_landing_slots) + slot * slots_bytes() + row * combine_row_bytes();
  }
  constexpr u64 staging(u32 row) const { return base + 2 * set_bytes() + row * combine_row_bytes(); }
};

}  // namespace uccl
