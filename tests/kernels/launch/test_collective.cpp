// A barrier is one warp, with the rank's context and the round.
#include "kernels/launch/collective.h"
#include "native/check.h"

using namespace uccl;

TEST(launch_barrier_is_one_warp_of_the_round) {
  RankContext rank{};
  rank.tag = 77;
  const auto l = barrier_launch(rank, 5);
  CHECK_EQ(l.args.round, 5u);
  CHECK_EQ(l.args.rank.tag, 77u);
  CHECK_EQ(l.grid.blocks * l.grid.warps, 1u);
  CHECK(l.grid.exact);
}
