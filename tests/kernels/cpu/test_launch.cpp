// Launches at a file's own width: every lane of every warp runs, and an empty grid is refused.
#include "kernels/cpu/launch.h"
#include "kernels/cpu/throughput.h"
#include "native/check.h"

using namespace uccl;

namespace {

struct CountArgs {
  u32* lanes;  // [blocks], each counts its threads
};
u64 shared_bytes(const CountArgs&, u32) { return 0; }
KERNEL count_lanes(CountArgs a) { simt::add_gpu(&a.lanes[simt::bid()], 1u); }

}  // namespace

TEST(cpu_launch_runs_every_lane_of_every_warp) {
  u32 lanes[3] = {};
  cpu::run(count_lanes, CountArgs{lanes}, cpu::Shape{3, 2, 2});
  for (const u32 n : lanes) CHECK_EQ(n, 2 * simt::kWarp);
}

TEST(cpu_launch_refuses_a_launch_without_blocks) {
  CHECK_THROWS(std::invalid_argument, cpu::throughput_layout(LayoutArgs{}, cpu::Shape{0, 1, 1}));
}
