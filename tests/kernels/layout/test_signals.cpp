// Every signal word has a place of its own inside the segment, at small sizes and at the limits.
#include <algorithm>
#include <vector>

#include "kernels/layout/signals.h"
#include "native/check.h"

using namespace uccl;

namespace {

void check_words(u32 ranks, u32 channels, u32 readers) {
  SignalLayout s;
  s.num_ranks = ranks;
  s.num_channels = channels;
  s.max_readers = readers;
  std::vector<u64> words;
  for (u32 p = 0; p < kNumPhases; ++p)
    for (u32 r = 0; r < ranks; ++r) {
      words.push_back(s.flag(static_cast<Phase>(p), r));
      words.push_back(s.consumed(static_cast<Phase>(p), r));
    }
  for (const Direction d : {Direction::kDispatch, Direction::kCombine})
    for (u32 r = 0; r < ranks; ++r)
      for (u32 c = 0; c < channels; ++c) {
        words.push_back(s.stream_tail(d, r, c));
        words.push_back(s.sent(d, r, c));
        if (d == Direction::kDispatch) words.push_back(s.partial_head(r, c));
        for (u32 g = 0; g < readers; ++g) words.push_back(s.stream_head(d, r, c, g));
      }
  words.push_back(s.barrier());
  for (u32 p = 0; p < kNumPhases; ++p)
    for (const u64 epoch : {0, 1}) {
      const u64 identity = s.identity(static_cast<Phase>(p), epoch), flag = s.flag_beside(static_cast<Phase>(p), epoch);
      words.insert(words.end(), {identity, identity + 8, flag});
      CHECK_EQ(identity / 32, flag / 32);  // in one sector
    }
  std::sort(words.begin(), words.end());
  CHECK(std::adjacent_find(words.begin(), words.end()) == words.end());
  for (const u64 w : words) CHECK(w % 8 == 0 && w + 8 <= s.bytes());
  CHECK_EQ(s.bytes() % 4096, 0u);
}

}  // namespace

TEST(layout_signals_words_do_not_overlap) {
  for (const u32 ranks : {1u, 2u, 7u})
    for (const u32 channels : {1u, 3u, kMaxChannels})
      for (const u32 readers : {1u, 5u, kMaxRanksPerNode}) check_words(ranks, channels, readers);
}

TEST(layout_signals_of_4096_ranks_fit_64_bit_offsets) {
  SignalLayout s;
  s.num_ranks = kMaxRanks;
  s.num_channels = kMaxChannels;
  s.max_readers = kMaxRanksPerNode;
  // 2 directions * 4096 ranks * 64 channels * 64 readers * 8 bytes of heads alone.
  CHECK(s.bytes() > 2ull * kMaxRanks * kMaxChannels * kMaxRanksPerNode * 8);
  CHECK(s.bytes() < 2ull * kMaxRanks * kMaxChannels * kMaxRanksPerNode * 8 * 11 / 10);
  CHECK(s.stream_head(Direction::kCombine, kMaxRanks - 1, kMaxChannels - 1, kMaxRanksPerNode - 1) < s.barrier());
}
