// What is the host back end's own: lanes that have left, 16-byte stores as two words, the clock, the width.
#include <atomic>
#include <thread>

#include "kernels/device/on_device.h"
#include "kernels/host/backend_host.h"
#include "wire/command.h"

namespace uccl::simt {

TEST(backend_host_has_the_width_it_was_built_for) {
  CHECK_EQ(kWarp, static_cast<u32>(UCCL_SIMT_WARP));
  CHECK_EQ(sizeof(mask_t) * 8, kWarp);
}

TEST(backend_host_collectives_count_only_live_lanes) {
  // The last warp is partial, and half of the first has left: neither adds to a sum or a vote.
  launch(LaunchConfig{1, kWarp + 5, 0, 1, 0}, [&] {
    CHECK_EQ(warp_sum(1), warp() == 0 ? kWarp : 5);
    if (warp() == 0 && lane() >= kWarp / 2) return;
    CHECK_EQ(warp_sum(1), warp() == 0 ? kWarp / 2 : 5);
    CHECK_EQ(popcount(ballot(true)), warp() == 0 ? kWarp / 2 : 5);
  });
}

TEST(backend_host_vote_is_the_same_for_a_lane_that_reads_it_late) {
  // Lanes that leave at once after the vote must not take their vote with them.
  std::vector<mask_t> votes(kWarp);
  on_warp([&] {
    votes[lane()] = ballot(true);
    if (lane() % 2 == 0) return;
    votes[lane()] &= ~(static_cast<mask_t>(ballot(true)) & 0x5555555555555555ull);
  });
  for (u32 i = 0; i < kWarp; ++i) CHECK_EQ(votes[i], static_cast<mask_t>(~static_cast<mask_t>(0)));
}

TEST(backend_host_command_store_is_never_taken_half) {
  // A reader that checks the parity of both words never sees words of two commands.
  alignas(16) u128 slot{0, 0};
  u64 torn = 0;
  std::thread reader([&] {
    for (u64 lap = 0; lap < 2000; ++lap) {
      const u64 parity = lap % 2 ? 0 : kParityBit;
      u64 lo, hi;
      do lo = std::atomic_ref<u64>(slot.lo).load(std::memory_order_acquire), std::this_thread::yield();
      while ((lo ^ parity) & kParityBit);
      hi = std::atomic_ref<u64>(slot.hi).load(std::memory_order_acquire);
      torn += ((hi ^ parity) & kParityBit) != 0 || (lo & ~kParityBit) != lap + 1 || (hi & ~kParityBit) != lap + 7;
      std::atomic_ref<u64>(slot.hi).store(~hi, std::memory_order_release);  // taken
    }
  });
  for (u64 lap = 0; lap < 2000; ++lap) {
    const u64 parity = lap % 2 ? 0 : kParityBit;
    st_release_sys(&slot, parity | (lap + 1), parity | (lap + 7));
    while (ld_acquire_sys(&slot.hi) != ~(parity | (lap + 7))) pause();
  }
  reader.join();
  CHECK_EQ(torn, 0ull);
}

TEST(backend_host_clock_is_the_steady_clock_in_ns) {
  const u64 before = now_ns();
  std::this_thread::sleep_for(std::chrono::milliseconds(3));
  const u64 took = now_ns() - before;
  CHECK(took >= 3'000'000 && took < 30'000'000'000);
}

}  // namespace uccl::simt
