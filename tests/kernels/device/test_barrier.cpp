// The grid barrier: nobody passes early, everything written before is seen, and it can be used again and again.
#include "kernels/device/barrier.h"
#include "kernels/device/on_device.h"

namespace uccl::simt {
namespace {

constexpr u64 kSecond = 1'000'000'000;

}  // namespace

TEST(barrier_shows_every_block_what_all_wrote) {
  Control control;
  u32 counter = 0;
  for (const u32 grid : {1u, 2u, 7u, 16u}) {  // the same counter, grid after grid
    for (const u32 threads : {1u, 2u}) {
      const u32 block = kWarp + 3;
      std::vector<u32> slot(grid * block, 0);  // plain memory: ThreadSanitizer checks the order
      launch(LaunchConfig{grid, block, 0, threads, grid}, [&] {
        const WaitContext wait = begin_wait(WaitContext{&control.abort, &control.fault, 0, 0, 0}, 60 * kSecond);
        for (u32 round = 1; round <= 12; ++round) {
          slot[bid() * block + tid()] = round;
          CHECK(sync_grid(&counter, wait, [] { return false; }));
          for (u32 b = 0; b < grid; ++b) CHECK_EQ(slot[b * block + (tid() + b) % block], round);
          CHECK(sync_grid(&counter, wait, [] { return false; }));
        }
      });
    }
  }
  CHECK_EQ(counter & 0x7fffffffu, 0u);
  CHECK_EQ(control.fault.claimed, 0u);
}

TEST(barrier_expires_when_a_block_does_not_come) {
  Control control;
  u32 counter = 0, gave_up = 0;
  launch(LaunchConfig{4, 40, 0, 2, 0}, [&] {
    if (bid() == 2) return;
    const WaitContext wait = begin_wait(WaitContext{&control.abort, &control.fault, 0, 6, 0}, kSecond / 100);
    if (!sync_grid(&counter, wait, [&] { return ld_relaxed_gpu(&gave_up) != 0; })) add_gpu(&gave_up, 1u);
  });
  CHECK_EQ(gave_up, 3u * 40);  // every lane of the blocks that came
  CHECK_EQ(control.fault.phase, static_cast<u32>(WaitPhase::kBarrier));
  CHECK_EQ(control.fault.peer, 6u);
  CHECK_EQ(control.fault.expected, 4ull);
}

}  // namespace uccl::simt
