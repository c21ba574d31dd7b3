// Low-latency regions: no two parts overlap, rows are aligned, and sizes hold at the limits.
#include <algorithm>
#include <vector>

#include "kernels/layout/low_latency.h"
#include "kernels/values.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

struct Part {
  u64 begin, end;
};

void check_parts(const LowLatencyLayout& l) {
  std::vector<Part> parts;
  for (const u64 epoch : {6ull, 7ull}) {
    const auto add = [&](u64 begin, u64 bytes) {
      CHECK_EQ(begin % 16, 0u);
      parts.push_back({begin, begin + bytes});
    };
    add(l.staged_rows(epoch), l.max_tokens * LowLatencyLayout::row_bytes(l.hidden, RowFormat::kBf16));
    add(l.staged_routing(epoch), LowLatencyLayout::routing_bytes(l.max_tokens, l.max_topk));
    for (u32 s = 0; s < l.num_landing_slots; ++s) {
      add(l.landing_rows(epoch, s), l.max_tokens * LowLatencyLayout::row_bytes(l.hidden, RowFormat::kBf16));
      add(l.landing_routing(epoch, s), LowLatencyLayout::routing_bytes(l.max_tokens, l.max_topk));
    }
    for (u32 s = 0; s < l.max_tokens * l.max_topk; ++s) add(l.combine_slot(epoch, s), l.combine_row_bytes());
    if (l.reduces) add(l.staged_weights(epoch), LowLatencyLayout::weights_bytes(l.max_tokens, l.max_topk));
    for (u32 s = 0; l.reduces && s < l.num_landing_slots; ++s) {
      add(l.landing_weights(epoch, s), LowLatencyLayout::weights_bytes(l.max_tokens, l.max_topk));
      for (u32 i = 0; i < l.max_tokens * l.max_topk; ++i)
        add(l.landing_combine_slot(epoch, s, i), l.combine_row_bytes());
    }
    for (u32 kind = 0; kind < (l.reduces ? 5u : 3u); ++kind)
      for (u32 r = 0; r < l.num_ranks; ++r) add(l.header(epoch, kind, r), 32);
    CHECK_EQ(l.set(epoch), l.set(epoch + 2));
  }
  for (u32 r = 0; r < l.staging_rows; ++r) parts.push_back({l.staging(r), l.staging(r) + l.combine_row_bytes()});
  std::sort(parts.begin(), parts.end(), [](Part a, Part b) { return a.begin < b.begin; });
  CHECK(parts.front().begin >= l.base && parts.back().end <= l.base + l.bytes());
  for (u64 i = 1; i < parts.size(); ++i) CHECK(parts[i - 1].end <= parts[i].begin);
}

}  // namespace

TEST(layout_low_latency_parts_do_not_overlap) {
  for (u64 seed = 0; seed < 40; ++seed) {
    LowLatencyLayout l;
    l.max_tokens = 1 + static_cast<u32>(mix(seed) % 9);
    l.hidden = 8 * (1 + static_cast<u32>(mix(seed + 100) % 80));
    l.max_topk = 1 + static_cast<u32>(mix(seed + 200) % 8);
    l.num_landing_slots = static_cast<u32>(mix(seed + 300) % 5);
    l.staging_rows = l.num_landing_slots ? 1 + static_cast<u32>(mix(seed + 400) % 7) : 0;
    l.num_ranks = 1 + static_cast<u32>(mix(seed + 500) % 9);
    l.base = 128 * (mix(seed + 600) % 1000);
    check_parts(l);
    l.reduces = 1;
    check_parts(l);
  }
}

TEST(layout_low_latency_row_sizes) {
  CHECK_EQ(LowLatencyLayout::row_bytes(7168, RowFormat::kBf16), 14336u);
  CHECK_EQ(LowLatencyLayout::row_bytes(7168, RowFormat::kFp8), 7168u + 56 * 4);
  CHECK_EQ(LowLatencyLayout::row_bytes(7168, RowFormat::kFp8Ue8m0), 7168u + 64);  // 56 exponents in 16-byte units
  CHECK_EQ(LowLatencyLayout::row_bytes(7168, RowFormat::kNvfp4), 3584u + 448);  // half a byte a channel, 1 for 16
  CHECK_EQ(LowLatencyLayout::row_bytes(8, RowFormat::kBf16), 16u);
  for (u32 hidden = 128; hidden <= 4096; hidden += 128)
    for (const RowFormat f :
         {RowFormat::kFp8, RowFormat::kFp8Ue8m0, RowFormat::kNvfp4, RowFormat::kMxfp8, RowFormat::kNvfp4Row})
      CHECK(LowLatencyLayout::row_bytes(hidden, f) <= LowLatencyLayout::row_bytes(hidden, RowFormat::kBf16));
}

TEST(layout_low_latency_nvfp4_scales_have_a_place_each) {
  // As [tiles, words, 32, 4, 4 bytes], against counting in those axes.
  for (const u64 rows : {1ull, 127ull, 128ull, 129ull, 300ull})
    for (const u32 words : {1u, 2u, 5u}) {
      std::vector<u32> taken(Nvfp4Scales::tiles(rows) * Nvfp4Scales::kTileRows * words);
      for (u64 row = 0; row < rows; ++row)
        for (u32 word = 0; word < words; ++word) {
          const u64 at = Nvfp4Scales::at(row, word, words);
          CHECK(at < taken.size());
          CHECK_EQ(taken[at]++, 0u);
          CHECK_EQ(at % 4 * 32 + at / 4 % 32 + at / 128 / words * 128, row);
          CHECK_EQ(at / 128 % words, word);
        }
    }
}

TEST(layout_low_latency_at_the_limits_does_not_wrap) {
  LowLatencyLayout l;
  l.max_tokens = kMaxTokensPerRank;
  l.hidden = kMaxHidden;
  l.max_topk = kMaxTopk;
  l.num_landing_slots = kMaxRanks / 64;
  l.num_ranks = kMaxRanks;
  const u64 rows = u64{kMaxTokensPerRank} * kMaxHidden * 2;  // 32 GiB a source
  CHECK(l.rows_bytes() == rows && l.slots_bytes() > rows * kMaxTopk);
  CHECK(l.bytes() > 2 * (65 * rows + rows * kMaxTopk));
  CHECK_EQ(l.combine_slot(1, 1) - l.combine_slot(1, 0), l.combine_row_bytes());
}
