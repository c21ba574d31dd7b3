// The control segment: tables of random shapes never overlap, are aligned, and fit.
#include <algorithm>
#include <cstddef>
#include <random>
#include <utility>

#include "native/check.h"
#include "wire/control.h"

using namespace uccl;

namespace {

using Piece = std::pair<u64, u64>;  // offset, bytes

std::vector<Piece> pieces(const ControlLayout& l) {
  std::vector<Piece> all = {{ControlLayout::kAbort, 8},
                            {ControlLayout::kFault, sizeof(FaultRecord)},
                            {ControlLayout::kBarrier, 8},
                            {ControlLayout::kLocalBarrier, 8}};
  for (u32 r = 0; r < l.num_ranks; ++r) {
    all.push_back({l.flag_time(r), 8});
    for (const Phase p : {Phase::kDispatch, Phase::kCombine}) all.push_back({l.consumed(p, r), 8});
    for (u32 p = 0; p < kNumPhases; ++p) {
      all.push_back({l.flag(static_cast<Phase>(p), r), 8});
      for (u64 epoch : {6ull, 7ull}) {
        all.push_back({l.expect(static_cast<Phase>(p), epoch, r), sizeof(ExpectHeader)});
        all.push_back({l.flag_beside(static_cast<Phase>(p), epoch, r), 8});
      }
    }
    for (u32 d = 0; d < kNumDirections; ++d)
      for (u32 c = 0; c < l.num_channels; ++c) {
        all.push_back({l.tail(static_cast<Direction>(d), r, c), 8});
        all.push_back({l.credit(static_cast<Direction>(d), r, c), 8});
      }
  }
  return all;
}

void never_overlap(const ControlLayout& l) {
  std::vector<Piece> all = pieces(l);
  std::sort(all.begin(), all.end());
  for (std::size_t i = 0; i < all.size(); ++i) {
    CHECK_EQ(all[i].first % (all[i].second == sizeof(FaultRecord) ? 64 : all[i].second == 32 ? 16 : 8), 0ull);
    if (i + 1 < all.size()) CHECK(all[i].first + all[i].second <= all[i + 1].first);
  }
  CHECK(all.back().first + all.back().second <= l.bytes());
  CHECK_EQ(l.bytes() % 4096, 0ull);
}

}  // namespace

TEST(wire_control_tables_never_overlap) {
  std::mt19937 random(3);
  for (u32 ranks = 1; ranks < 20; ++ranks) never_overlap({ranks, ranks % 7});
  for (int i = 0; i < 40; ++i) {
    const u32 ranks = 1 + static_cast<u32>(random() % 300);
    never_overlap({ranks, static_cast<u32>(random() % (kMaxChannels + 1))});
  }
  never_overlap({kMaxRanks, 3});
  never_overlap({257, kMaxChannels});
}

TEST(wire_control_fits_a_reasonable_segment_at_the_limits) {
  const ControlLayout l{kMaxRanks, kMaxChannels};
  CHECK(l.bytes() < 16ull << 20);
  CHECK(l.consumed(Phase::kCombine, kMaxRanks - 1) + 8 <= l.bytes());
}

TEST(wire_control_expect_headers_alternate_by_epoch) {
  const ControlLayout l{5, 2};
  CHECK_EQ(l.expect(Phase::kCombine, 1, 3), l.expect(Phase::kCombine, 3, 3));
  CHECK(l.expect(Phase::kCombine, 1, 3) != l.expect(Phase::kCombine, 2, 3));
}

TEST(wire_control_identity_and_flag_are_in_one_sector) {
  for (const u32 ranks : {3u, 8u})
    for (u32 source = 0; source < ranks; ++source)
      for (const u64 epoch : {6ull, 7ull}) {
        const ControlLayout l{ranks, 5};
        const u64 identity = l.expect(Phase::kReduced, epoch, source) + offsetof(ExpectHeader, identity);
        CHECK_EQ(l.flag_beside(Phase::kReduced, epoch, source) / 32, identity / 32);
        CHECK_EQ((identity + sizeof(CallIdentity) - 1) / 32, identity / 32);
      }
}

TEST(wire_control_records_have_fixed_shapes) {
  CHECK_EQ(offsetof(ExpectHeader, num_writes), 8u);
  CHECK_EQ(offsetof(ExpectHeader, consumed_combine), 24u);
  CHECK_EQ(offsetof(FaultRecord, kind), 8u);
  CHECK_EQ(offsetof(FaultRecord, expected), 24u);
  CHECK_EQ(offsetof(FaultRecord, waited_ns), 48u);
}
