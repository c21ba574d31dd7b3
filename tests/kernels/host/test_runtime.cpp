// The fiber runtime: what it refuses, what it notices, and that the order of warps is the seed's.
#include <thread>

#include "kernels/device/on_device.h"
#include "kernels/host/runtime.h"

namespace uccl::simt {

TEST(runtime_refuses_shapes_that_cannot_run) {
  const auto nothing = [] {};
  CHECK_THROWS(std::invalid_argument, launch({0, 32, 0, 1, 0}, nothing));
  CHECK_THROWS(std::invalid_argument, launch({1, 0, 0, 1, 0}, nothing));
  CHECK_THROWS(std::invalid_argument, launch({1, kMaxBlock + 1, 0, 1, 0}, nothing));
  CHECK_THROWS(std::invalid_argument, launch({1, 32, kMaxSharedBytes + 1, 1, 0}, nothing));
  CHECK_THROWS(std::invalid_argument, launch({1, 32, 0, 0, 0}, nothing));
  CHECK_THROWS(std::invalid_argument, launch({kMaxLanes / kWarp + 1, 1, 0, 1, 0}, nothing));
  CHECK_THROWS(std::invalid_argument, launch({~0u, 1024, 0, 1, 0}, nothing));
  try {
    launch({kMaxLanes, 64, 0, 1, 0}, nothing);
  } catch (const std::invalid_argument& e) {
    const std::string what = e.what();
    CHECK(what.find("grid") != std::string::npos && what.find(std::to_string(kMaxLanes)) != std::string::npos);
  }
}

TEST(runtime_runs_as_many_lanes_as_it_says_and_gives_their_stacks_back) {
  // A flag that the last block sets and every other waits for: all blocks are resident at once.
  const u32 grid = kMaxLanes / kWarp;
  u32 count = 0;
  u64 flag = 0;
  launch(LaunchConfig{grid, kWarp, 0, 2, 0}, [&] {
    add_gpu(&count, 1u);
    if (bid() == grid - 1 && lane() == 0) st_release_sys(&flag, 1);
    if (lane() == 0)
      while (ld_acquire_sys(&flag) == 0) pause();
  });
  CHECK_EQ(count, kMaxLanes);
  CHECK(pooled_stack_bytes() <= 256ull * kWarp * kStackBytes);
  CHECK(pooled_stack_bytes() > 0);
}

TEST(runtime_poisons_shared_memory_in_every_block) {
  launch(LaunchConfig{3, 2 * kWarp, 1000, 2, 0}, [&] {
    const u8* s = &smem<u8>();
    CHECK_EQ(reinterpret_cast<uintptr_t>(s) % 128, 0u);
    for (u32 i = tid(); i < 1000; i += ntid()) CHECK_EQ(+s[i], 0xCD);
  });
}

TEST(runtime_throws_what_a_lane_threw) {
  for (const u32 threads : {1u, 2u}) {
    u64 never = 0;
    try {
      launch(LaunchConfig{4, 64, 0, threads, 0}, [&] {
        if (bid() == 3 && tid() == 40) throw std::runtime_error("lane 40 of block 3");
        while (ld_acquire_sys(&never) == 0) pause();  // the others would wait for ever
      });
      CHECK(false);
    } catch (const std::runtime_error& e) { CHECK_EQ(std::string(e.what()), "lane 40 of block 3"); }
    u32 count = 0;  // and the next launch is a clean one
    launch(LaunchConfig{2, 64, 0, threads, 0}, [&] { add_gpu(&count, 1u); });
    CHECK_EQ(count, 128u);
  }
}

TEST(runtime_notices_a_barrier_that_not_every_lane_reaches) {
  CHECK_THROWS(std::logic_error, launch({2, 64, 0, 2, 0}, [] {
                 if (tid() != 5) sync_block();
               }));
  CHECK_THROWS(std::logic_error, launch({1, 2 * kWarp, 0, 1, 0}, [] {
                 if (warp() == 0)
                   sync_block();
                 else if (lane() < 3)
                   sync_warp();
                 else
                   sync_block();
               }));
}

TEST(runtime_refuses_a_launch_inside_a_kernel) {
  CHECK_THROWS(std::logic_error, launch({1, 1, 0, 1, 0}, [] { launch({1, 1, 0, 1, 0}, [] {}); }));
}

TEST(runtime_seed_decides_the_order_of_warps) {
  const auto order = [](u64 seed) {
    std::vector<u32> turns(64);
    u32 next = 0;
    launch(LaunchConfig{8, 2 * kWarp, 0, 1, seed}, [&] {
      for (u32 i = 0; i < 4; ++i) {
        if (lane() == 0) turns.at(add_gpu(&next, 1u)) = bid() * 2 + warp();
        pause();
      }
    });
    return turns;
  };
  CHECK_EQ(order(0)[63], 15u);
  CHECK(order(0) == order(0));
  CHECK(order(42) == order(42));
  CHECK(order(42) != order(0));
  CHECK(order(42) != order(43));
}

TEST(runtime_gives_every_lane_its_turn_while_others_spin) {
  // Lane l waits for lane l - 1 of its warp, warp w for warp w - 1: a chain through spinning lanes.
  u32 turn = 0;
  launch(LaunchConfig{1, 3 * kWarp, 0, 1, 0}, [&] {
    while (ld_acquire_gpu(&turn) != tid()) pause();
    st_release_gpu(&turn, tid() + 1);
  });
  CHECK_EQ(turn, 3 * kWarp);
}

TEST(runtime_keeps_lane_stacks_and_registers_apart) {
  Random random(9);
  const u64 salt = random();
  launch(LaunchConfig{2, 96, 0, 2, 5}, [&] {
    volatile u64 local[300];
    double x = tid() + 0.25;
    for (u64 i = 0; i < 300; ++i) local[i] = salt * (tid() + 1) + i;
    for (u32 round = 0; round < 4; ++round) {
      pause();
      sync_block();
      x = x * 2 - (tid() + 0.25);
      for (u64 i = 0; i < 300; ++i) CHECK_EQ(local[i], salt * (tid() + 1) + i);
    }
    CHECK_EQ(x, tid() + 0.25);
  });
}

TEST(runtime_launches_from_several_threads_do_not_meet) {
  std::vector<std::thread> ranks;
  std::vector<u32> sum(4, 0);
  for (u32 r = 0; r < 4; ++r)
    ranks.emplace_back([&, r] {
      for (u32 i = 0; i < 20; ++i)
        launch(LaunchConfig{2, 64, 64, 2, i}, [&] {
          if (tid() == 0) smem<u32>() = r;
          sync_block();
          add_gpu(&sum[r], smem<u32>() + 1);
        });
    });
  for (std::thread& t : ranks) t.join();
  for (u32 r = 0; r < 4; ++r) CHECK_EQ(sum[r], 20 * 128 * (r + 1));
}

TEST(runtime_pause_outside_of_a_launch_yields) {
  u64 flag = 0;
  std::thread other([&] { st_release_sys(&flag, 1); });
  while (ld_acquire_sys(&flag) == 0) pause();
  other.join();
  CHECK(current_lane == nullptr);
}

}  // namespace uccl::simt
