// Where throughput rows live, and what a row is.
//
// A *stream* is the rows of one source, one channel and one destination cell (topology.h: normally a node; the source's
// own node is one destination in any case), in token order. It is kept in a ring of chunks at the source's landing rank
// in that cell; every rank of the cell reads the whole ring and takes the rows that name it. So a row is staged once,
// crosses the network once per remote cell, and is never forwarded. In combine each rank keeps a ring per (source,
// channel) with its rows for that source; the source's landing rank in the cell merges them by token and sends one
// partial sum per token to the source.
//
// Rings are cut from *units* of equal size (one unit per source or cell), each shared out among the channels of the
// call. A chunk's number never resets, so late credits and writes of an older call cannot be taken for new ones.
#pragma once
#include "wire/control.h"
#include "wire/limits.h"
#include "wire/types.h"

namespace uccl {

// Dispatch row: header | payload | scales | top-k weights (f32) | top-k ids (i16), padded to 16.
// Combine row:  header | payload (bf16) | top-k weights (f32), padded to 16.
struct alignas(16) RowHeader {
  u64 destinations;  // dispatch: ranks of the cell (by place) that take this row; combine: its RowPlace
  u32 token;  // index at its source
  u32 seal;  // folds the words above and the row's position: a header that was changed, or left by another lap, has another

  // What writer and reader both count: a row's chunk, and the rows of the call's stream that follow it.
  static constexpr u32 position(u64 chunk, u64 left) { return static_cast<u32>(chunk << 16 ^ left); }
  static constexpr RowHeader make(u64 destinations, u32 token, u32 position) {
    return RowHeader{destinations, token, static_cast<u32>(destinations ^ destinations >> 32) ^ token ^ position};
  }
  constexpr bool is_at(u32 position) const { return seal == make(destinations, token, position).seal; }
};
static_assert(sizeof(RowHeader) == 16 && kMaxTokensPerRank <= 1u << 16);

// Where the payload of a combine row lies: 0 = behind its header; else in the arena of a rank of this node, which all of
// them map (CombineArgs::arenas).
struct RowPlace {
  static constexpr u32 kOffsetBits = 48;
  static constexpr u64 in_arena(u32 local, u64 offset) { return (local + 1ull) << kOffsetBits | offset; }
  static constexpr u32 local(u64 place) { return static_cast<u32>(place >> kOffsetBits) - 1; }
  static constexpr u64 offset(u64 place) { return place & low_bits(kOffsetBits); }
};

struct RowShape {
  u32 payload_bytes = 0;  // hidden * element size, multiple of 16
  u32 scale_bytes = 0;  // scales of a row, multiple of 4
  u32 topk = 0;  // 0: no ids, no weights
  u32 has_ids = 0;
  u32 has_weights = 0;
  u32 dtype = 0;  // of the payload, by a number that all ranks have alike; moves no byte

  constexpr u64 scales() const { return sizeof(RowHeader) + payload_bytes; }
  constexpr u64 weights() const { return scales() + scale_bytes; }
  constexpr u64 ids() const { return weights() + (has_weights ? 4ull * topk : 0); }
  constexpr u64 bytes() const { return align_up(ids() + (has_ids ? 2ull * topk : 0), 16); }
};

// How a unit is cut for one call. The same on every rank for the same call.
struct StreamGeometry {
  u64 unit_bytes = 0;
  u32 num_channels = 1;
  u32 rows_per_chunk = 1;
  u32 num_slots = 0;  // chunks in one ring; power of two not required; 0 = does not fit
  u32 row_bytes = 0;

  static constexpr u64 kWantedChunkBytes = 256 << 10;
  static constexpr u32 kMinSlots = 2;
  static constexpr u32 kMaxSlots = kMaxSequenceInFlight / 2;

  static constexpr StreamGeometry make(u64 unit_bytes, u32 num_channels, u64 row_bytes) {
    StreamGeometry g;
    g.unit_bytes = unit_bytes;
    g.num_channels = num_channels;
    g.row_bytes = static_cast<u32>(row_bytes);
    const u64 ring = unit_bytes / num_channels / 128 * 128;
    const u64 rows = ring / row_bytes;
    u64 per_chunk = kWantedChunkBytes / row_bytes;
    if (per_chunk > rows / 8) per_chunk = rows / 8;  // eight chunks keep reader and writer apart
    if (per_chunk < 1) per_chunk = 1;
    u64 slots = rows / per_chunk;
    if (slots > kMaxSlots) slots = kMaxSlots;
    g.rows_per_chunk = static_cast<u32>(per_chunk);
    g.num_slots = slots < kMinSlots ? 0 : static_cast<u32>(slots);
    return g;
  }
  // As many channels as fit, `most` at most; without slots where not even one does.
  static constexpr StreamGeometry fit(u64 unit_bytes, u32 most, u64 row_bytes) {
    StreamGeometry g = make(unit_bytes, most, row_bytes);
    while (g.num_slots == 0 && g.num_channels > 1) g = make(unit_bytes, g.num_channels - 1, row_bytes);
    return g;
  }
  constexpr u64 chunk_bytes() const { return static_cast<u64>(rows_per_chunk) * row_bytes; }
  constexpr u64 num_chunks(u64 rows) const { return ceil_div(rows, rows_per_chunk); }
  // Offset of a chunk inside its unit.
  constexpr u64 chunk(u32 channel, u64 number) const {
    return channel * (unit_bytes / num_channels / 128 * 128) + number % num_slots * chunk_bytes();
  }
  constexpr bool operator==(const StreamGeometry& o) const {
    return unit_bytes == o.unit_bytes && num_channels == o.num_channels && rows_per_chunk == o.rows_per_chunk &&
           num_slots == o.num_slots && row_bytes == o.row_bytes;
  }
};

// A count as a source tells it to others: the low 22 bits; above them a check that takes in the exchange's number, so
// that a word of another exchange, or one of which any bit was changed, counts nothing.
struct CountWord {
  static constexpr u32 kBits = 22, kMost = kMaxTokensPerRank * kMaxTopk;
  static constexpr u32 kNoCount = ~0u;
  static constexpr u32 seal(u64 n, u64 epoch) {
    const u32 low = n <= kMost ? static_cast<u32>(n) : static_cast<u32>(low_bits(kBits));  // which no reader takes
    return low | check(low, epoch) << kBits;
  }
  static constexpr u32 open(u32 word, u64 epoch) {
    const u32 n = word & static_cast<u32>(low_bits(kBits));
    return n <= kMost && word >> kBits == check(n, epoch) ? n : kNoCount;
  }

 private:
  static constexpr u32 check(u32 n, u64 epoch) {
    return (n ^ n >> 10 ^ n >> 20 ^ static_cast<u32>(epoch)) & static_cast<u32>(low_bits(32 - kBits));
  }
};
static_assert(CountWord::kMost < low_bits(CountWord::kBits));

// What one source tells a cell before a dispatch: CountWords behind this header:
//   rows[channel]                       rows of the stream (source, channel)
//   tokens[reader][channel]             how many of them reader takes
//   experts[reader][local expert]       (token, k) selections of each expert, before alignment
struct alignas(16) CountsHeader {
  u32 num_channels, num_local_experts, num_readers, topk;
  u32 payload_bytes, scale_bytes, has_ids, has_weights;
  u64 epoch;  // of the exchange
  u32 dtype, tag;

  // All of it, with the words behind the header.
  static constexpr u64 bytes(u32 channels, u32 readers, u32 local_experts) {
    return align_up(sizeof(CountsHeader) + 4ull * (channels * (1 + readers) + readers * local_experts), 16);
  }
};
static_assert(sizeof(CountsHeader) == 48);

struct ThroughputLayout {
  u64 base = 0;  // where this part starts in the data region
  u32 num_ranks = 0;
  u32 num_cells = 0;  // of all nodes (topology.h); 1 when there is one node
  u32 num_landing_slots = 0;  // 0 when there is one node
  u32 max_readers = 0;  // largest node
  u32 max_local_experts = 0;
  u32 unused = 0;
  u64 unit_bytes = 0;  // multiple of 128

  constexpr u64 counts_bytes() const {
    return align_up(
        sizeof(CountsHeader) + 4ull * kMaxChannels * (1 + max_readers) + 4ull * max_readers * max_local_experts, 128);
  }
  constexpr u64 remote_cells() const { return num_cells > 1 ? num_cells : 0; }
  // Units: dispatch own stream, dispatch staging per cell, dispatch hosted; combine contributions per source, combine
  // partial staging per hosted source, combine partials per cell.
  constexpr u64 num_units() const {
    return 1 + remote_cells() + num_landing_slots + num_ranks + num_landing_slots + remote_cells();
  }
  // Two sets of counts, by epoch: outgoing per cell, and hosted; then expect headers per cell.
  constexpr u64 counts_set_bytes() const {
    return (num_cells + num_landing_slots) * counts_bytes() + align_up(num_cells * sizeof(ExpectHeader), 128);
  }
  constexpr u64 bytes() const { return 2 * counts_set_bytes() + num_units() * unit_bytes; }

  constexpr u64 counts_set(u64 epoch) const { return base + (epoch & 1) * counts_set_bytes(); }
  constexpr u64 own_counts(u64 epoch, u32 cell) const { return counts_set(epoch) + cell * counts_bytes(); }
  constexpr u64 landing_counts(u64 epoch, u32 slot) const {
    return counts_set(epoch) + (num_cells + slot) * counts_bytes();
  }
  constexpr u64 counts_expect(u64 epoch, u32 cell) const {
    return counts_set(epoch) + (num_cells + num_landing_slots) * counts_bytes() + cell * sizeof(ExpectHeader);
  }

  constexpr u64 units() const { return base + 2 * counts_set_bytes(); }
  constexpr u64 own_stream() const { return units(); }
  constexpr u64 dispatch_staging(u32 cell) const { return units() + (1 + cell) * unit_bytes; }
  constexpr u64 dispatch_hosted(u32 slot) const { return units() + (1 + remote_cells() + slot) * unit_bytes; }
  constexpr u64 contributions(u32 source) const {
    return units() + (1 + remote_cells() + num_landing_slots + source) * unit_bytes;
  }
  constexpr u64 partial_staging(u32 slot) const {
    return units() + (1 + remote_cells() + num_landing_slots + num_ranks + slot) * unit_bytes;
  }
  constexpr u64 partial(u32 cell) const {
    return units() + (1 + remote_cells() + 2ull * num_landing_slots + num_ranks + cell) * unit_bytes;
  }
};

}  // namespace uccl
