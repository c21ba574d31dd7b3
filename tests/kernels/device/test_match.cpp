// Matching ids against a warp's lanes: the host's version and the lanes' version find what a plain loop finds, in order.
#include "kernels/device/match.h"
#include "kernels/device/on_device.h"

using namespace uccl;
using namespace uccl::simt;

namespace {

struct Match {
  u32 neighbour, position, index;
  bool operator==(const Match& o) const {
    return neighbour == o.neighbour && position == o.position && index == o.index;
  }
};

std::vector<short> some_ids(Random& random, u32 n, u32 from, u32 to) {
  std::vector<short> ids(n);
  for (short& id : ids) id = below(random, 7) == 0 ? -1 : static_cast<short>(from + below(random, to - from));
  return ids;
}

// A lane's own version needs neighbours for lanes, which one lane has not.
constexpr u32 kVersions = kWarp == 1 ? 1 : 2;

// Both versions against a loop over the list, for the lanes' neighbours first, first + 1, ...
void check_matches(const std::vector<short>& ids, u32 first, u32 width) {
  std::vector<std::vector<u32>> expected(kMatchWidth);
  for (u32 i = 0; i < ids.size(); ++i)
    for (u32 j = 0; j < width; ++j)
      if (ids[i] == static_cast<short>(first + j)) expected[j].push_back(i);
  const u32 n = static_cast<u32>(ids.size());
  std::vector<u32> counts[2] = {std::vector<u32>(kMatchWidth, ~0u), std::vector<u32>(kMatchWidth, ~0u)};
  std::vector<std::vector<Match>> found[2] = {std::vector<std::vector<Match>>(kMatchWidth),
                                              std::vector<std::vector<Match>>(kMatchWidth)};
  on_warp([&] {
    u32 positions[kMatchesPerLane], mine[kMatchesPerLane];
    for (u32 i = 0; i < kMatchesPerLane; ++i) positions[i] = 100 * (lane() + i * kWarp);
    const auto into = [](std::vector<std::vector<Match>>* all) {
      return [all](u32 j, u32 p, u32 i) { (*all)[j].push_back({j, p, i}); };
    };
    count_matches(ids.data(), n, first, width, mine);
    for (u32 i = 0; i < kMatchesPerLane; ++i) counts[0][lane() + i * kWarp] = mine[i];
    for_each_match(ids.data(), n, first, width, positions, into(&found[0]));
    if constexpr (kVersions == 1) return;
    counts[1][lane()] = lanes::count_matches(ids.data(), n, first, width);
    lanes::for_each_match(ids.data(), n, first, width, positions[0], into(&found[1]));
  });
  for (u32 version = 0; version < kVersions; ++version)
    for (u32 j = 0; j < kMatchWidth; ++j) {
      CHECK_EQ(counts[version][j], expected[j].size());
      CHECK_EQ(found[version][j].size(), expected[j].size());
      for (u32 i = 0; i < expected[j].size(); ++i)
        CHECK(found[version][j][i] == (Match{j, 100 * j + i, expected[j][i]}));
    }
}

}  // namespace

TEST(match_finds_what_a_loop_finds) {
  Random random(1);
  constexpr u32 kFull = kMatchWidth;
  for (const u32 n : {0u, 1u, 2u, kFull - 1, kFull, kFull + 1, 4 * kFull, 4 * kFull + 1, 777u, 1024u})
    for (const u32 width : {1u, 3u, kFull / 2, kFull - 1, kFull}) {
      const u32 first = below(random, 200);
      check_matches(some_ids(random, n, first > 20 ? first - 20 : 0, first + width + 20), first, width);
    }
}

TEST(match_stays_within_its_neighbours) {
  Random random(2);
  check_matches(some_ids(random, 500, 0, 4096), 4096 - kMatchWidth, kMatchWidth);  // the last experts there can be
  check_matches(some_ids(random, 500, 0, 8), 8, kMatchWidth);  // all below
  check_matches(some_ids(random, 500, 8, 16), 0, 8);  // all above: no neighbour of width 8
  check_matches(std::vector<short>(300, 5), 0, kMatchWidth);  // all the same
  check_matches(std::vector<short>(300, -1), 0, kMatchWidth);
  check_matches(some_ids(random, 100, 0, 40), 0, 0);
}

TEST(match_lane_tells_each_lane_who_means_it) {
  Random random(3);
  for (u32 turn = 0; turn < 50; ++turn) {
    std::vector<u32> offsets(kWarp);
    for (u32& o : offsets) o = below(random, 5) == 0 ? ~0u - below(random, 70) : below(random, kWarp + 5);
    const u32 width = 1 + below(random, kWarp);
    std::vector<u64> got(kWarp);
    on_warp([&] { got[lane()] = lanes::match_lane(offsets[lane()], width); });
    for (u32 j = 0; j < kWarp; ++j)
      for (u32 l = 0; l < kWarp; ++l) CHECK_EQ(got[j] >> l & 1, u64{offsets[l] == j && j < width});
  }
}
