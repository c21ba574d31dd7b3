// A grid names units of work or an exact number of blocks; it is never empty where blocks may be fewer.
#include "kernels/launch/launch.h"
#include "native/check.h"

using namespace uccl;

TEST(launch_grid_of_units_has_a_block_at_least) {
  CHECK_EQ(up_to(0).blocks, 1u);
  CHECK_EQ(up_to(7, 2).blocks, 7u);
  CHECK_EQ(up_to(7, 2).warps, 2u);
  CHECK(!up_to(7).exact);
  CHECK(exactly(3).exact);
  CHECK_EQ(exactly(3).warps, kBlockWarps);
}
