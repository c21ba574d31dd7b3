// Throughput rings: how a unit is cut, that chunks of a ring never overlap, and that units, counts and headers do not.
#include <algorithm>
#include <vector>

#include "kernels/layout/throughput.h"
#include "kernels/values.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

TEST(layout_throughput_chunks_stay_apart) {
  u32 fits = 0;
  for (u64 seed = 0; seed < 400; ++seed) {
    const u64 unit = 128 * (1 + mix(seed) % 4000);
    const u32 channels = 1 + static_cast<u32>(mix(seed + 1000) % kMaxChannels);
    const u64 row = 16 * (1 + mix(seed + 2000) % 300);
    const StreamGeometry g = StreamGeometry::make(unit, channels, row);
    if (g.num_slots == 0) {
      CHECK(unit / channels / 128 * 128 / row < StreamGeometry::kMinSlots);
      continue;
    }
    ++fits;
    CHECK(g.num_slots >= StreamGeometry::kMinSlots && g.num_slots <= StreamGeometry::kMaxSlots);
    CHECK(g.chunk_bytes() <= std::max<u64>(StreamGeometry::kWantedChunkBytes, row) &&
          g.chunk_bytes() <= kMaxWriteBytes);
    u64 end = 0;
    for (u32 c = 0; c < channels; ++c)
      for (u32 n = 0; n < g.num_slots; ++n) {
        CHECK(g.chunk(c, n) >= end);
        end = g.chunk(c, n) + g.chunk_bytes();
        CHECK_EQ(g.chunk(c, n), g.chunk(c, n + 5ull * g.num_slots));  // numbers never reset
        CHECK_EQ(g.chunk(c, n) % 16, 0u);
      }
    CHECK(end <= unit);
  }
  CHECK(fits > 100);
}

TEST(layout_throughput_in_flight_stays_in_the_sequence_window) {
  // However large the unit, no stream can have more chunks open than a receiver's window can put in order.
  const StreamGeometry g = StreamGeometry::make(1ull << 33, 1, 16);
  CHECK_EQ(g.num_slots, StreamGeometry::kMaxSlots);
  CHECK(g.num_slots < kMaxSequenceInFlight);
}

TEST(layout_throughput_rows_hold_their_parts) {
  for (const u32 topk : {0u, 1u, 7u, 32u})
    for (const u32 scales : {0u, 4u, 28u})
      for (const u32 ids : {0u, 1u})
        for (const u32 weights : {0u, 1u}) {
          const RowShape s{4096, scales, topk, ids, weights};
          CHECK_EQ(s.scales(), 16u + 4096);
          CHECK_EQ(s.weights(), s.scales() + scales);
          CHECK_EQ(s.ids(), s.weights() + (weights ? 4 * topk : 0));
          CHECK(s.bytes() >= s.ids() + (ids ? 2 * topk : 0) && s.bytes() % 16 == 0);
          CHECK(s.bytes() < s.ids() + (ids ? 2 * topk : 0) + 16);
        }
}

TEST(layout_throughput_units_and_counts_do_not_overlap) {
  for (u64 seed = 0; seed < 30; ++seed) {
    ThroughputLayout l;
    l.base = 4096 * (mix(seed) % 9);
    l.num_ranks = 1 + static_cast<u32>(mix(seed + 1) % 12);
    l.num_cells = 1 + static_cast<u32>(mix(seed + 2) % 4);
    l.num_landing_slots = l.num_cells > 1 ? 2 * l.num_cells : 0;
    l.max_readers = 1 + static_cast<u32>(mix(seed + 3) % 8);
    l.max_local_experts = 1 + static_cast<u32>(mix(seed + 4) % 40);
    l.unit_bytes = 128 * (1 + mix(seed + 5) % 50);
    std::vector<std::pair<u64, u64>> parts;
    const auto add = [&](u64 begin, u64 bytes) { parts.push_back({begin, begin + bytes}); };
    for (const u64 epoch : {2ull, 3ull}) {
      for (u32 n = 0; n < l.num_cells; ++n) {
        add(l.own_counts(epoch, n), l.counts_bytes());
        add(l.counts_expect(epoch, n), 32);
      }
      for (u32 s = 0; s < l.num_landing_slots; ++s) add(l.landing_counts(epoch, s), l.counts_bytes());
    }
    add(l.own_stream(), l.unit_bytes);
    for (u32 n = 0; n < l.remote_cells(); ++n) {
      add(l.dispatch_staging(n), l.unit_bytes);
      add(l.partial(n), l.unit_bytes);
    }
    for (u32 s = 0; s < l.num_landing_slots; ++s) {
      add(l.dispatch_hosted(s), l.unit_bytes);
      add(l.partial_staging(s), l.unit_bytes);
    }
    for (u32 r = 0; r < l.num_ranks; ++r) add(l.contributions(r), l.unit_bytes);
    std::sort(parts.begin(), parts.end());
    for (u64 i = 1; i < parts.size(); ++i) CHECK(parts[i - 1].second <= parts[i].first);
    CHECK(parts.front().first >= l.base);
    CHECK_EQ(parts.back().second, l.base + l.bytes());
  }
}

TEST(layout_throughput_a_changed_word_counts_nothing) {
  for (const u64 epoch : {1ull, 2ull, 1023ull, 1ull << 40})
    for (const u32 n : {0u, 1u, 12u, 65536u, CountWord::kMost}) {
      const u32 word = CountWord::seal(n, epoch);
      CHECK_EQ(CountWord::open(word, epoch), n);
      CHECK_EQ(CountWord::open(word, epoch + 1), CountWord::kNoCount);
      for (u32 bit = 0; bit < 32; ++bit) CHECK_EQ(CountWord::open(word ^ 1u << bit, epoch), CountWord::kNoCount);
      for (const u64 more : {u64{CountWord::kMost} + 1, u64{static_cast<u32>(-1)}, ~0ull})
        CHECK_EQ(CountWord::open(CountWord::seal(more, epoch), epoch), CountWord::kNoCount);
    }
}

TEST(layout_throughput_a_changed_row_header_is_at_no_position) {
  const u32 position = RowHeader::position(70000, 65535);
  const RowHeader header = RowHeader::make(0x8000000000000001ull, 65535, position);
  CHECK(header.is_at(position));
  CHECK(!header.is_at(RowHeader::position(70000, 65534)) && !header.is_at(RowHeader::position(70001, 65535)));
  for (u32 bit = 0; bit < 128; ++bit) {
    RowHeader changed = header;
    reinterpret_cast<u8*>(&changed)[bit / 8] ^= static_cast<u8>(1u << bit % 8);
    CHECK(!changed.is_at(position));
  }
}
