// Lanes, masks, shuffles, atomics and conversions of the device API, as the host runs them at this binary's warp width.
#include <cmath>

#include "kernels/device/on_device.h"

namespace uccl::simt {

TEST(simt_lane_warp_and_block_indices_cover_a_grid_once) {
  for (const u32 block : {1u, 31u, 33u, kWarp, kWarp + 1, 96u, 200u}) {
    const u32 grid = 3;
    std::vector<u32> seen(grid * block, 0);
    launch(LaunchConfig{grid, block, 0, 2, 0}, [&] {
      CHECK_EQ(ntid(), block);
      CHECK_EQ(nbid(), grid);
      CHECK_EQ(tid(), warp() * kWarp + lane());
      CHECK_EQ(num_warps(), (block + kWarp - 1) / kWarp);
      seen[bid() * block + tid()]++;
    });
    for (const u32 n : seen) CHECK_EQ(n, 1u);
  }
}

TEST(simt_shuffles_give_the_value_of_the_named_lane) {
  Random random(1);
  std::vector<u64> value(kWarp), source(kWarp);
  for (u32 i = 0; i < kWarp; ++i) value[i] = random(), source[i] = below(random, kWarp);
  on_warp([&] {
    CHECK_EQ(shfl(value[lane()], static_cast<u32>(source[lane()])), value[source[lane()]]);
    for (u32 m = 1; m < kWarp; m *= 2) CHECK_EQ(shfl_xor(value[lane()], m), value[lane() ^ m]);
    CHECK_EQ(shfl(static_cast<float>(lane()), 3u), 3.f);
    CHECK_EQ(shfl(static_cast<u16>(lane()), kWarp - 1), kWarp - 1);
  });
}

TEST(simt_ballot_and_masks_agree) {
  Random random(2);
  for (int round = 0; round < 20; ++round) {
    const mask_t chosen = static_cast<mask_t>(random() & random());
    on_warp([&] {
      const mask_t m = ballot(chosen >> lane() & 1);
      CHECK_EQ(m, chosen);
      u32 count = 0, before = 0, first = kWarp;
      for (u32 i = kWarp; i-- > 0;)
        if (chosen >> i & 1) ++count, before += i < lane(), first = i;
      CHECK_EQ(popcount(m), count);
      CHECK_EQ(popcount(m & lane_mask_lt()), before);
      if (m != 0) CHECK_EQ(first_lane(m), first);
    });
  }
}

TEST(simt_reductions_are_over_the_warp_and_aligned_groups) {
  on_warp([&] {
    CHECK_EQ(warp_sum(lane() + 1), kWarp * (kWarp + 1) / 2);
    CHECK_EQ(warp_max(lane() == 7 ? 3.f : -static_cast<float>(lane())), 3.f);
    CHECK_EQ(group_max<16>(static_cast<float>(lane())), static_cast<float>(lane() | 15));
    CHECK_EQ(group_max<4>(lane() % 4 == 1 ? bits_f(0x7fc00000u) : 1.f), 1.f);  // NaN counts as absent
  });
}

TEST(simt_block_barrier_orders_shared_memory) {
  struct Shared {
    u32 value[512];
  };
  launch(LaunchConfig{4, 320, sizeof(Shared), 2, 7}, [&] {
    Shared& s = smem<Shared>();
    for (u32 round = 0; round < 5; ++round) {
      s.value[tid()] = tid() * 3 + round;
      sync_block();
      const u32 other = (tid() * 7 + 13) % ntid();
      CHECK_EQ(s.value[other], other * 3 + round);
      CHECK(sync_block_and(true));
      CHECK(!sync_block_and(tid() != round));
    }
  });
}

TEST(simt_atomics_lose_no_update) {
  u32 narrow = 0, ordered = 0, claims = 0, claimed = 0, of_block[6] = {};
  u64 wide = 0, system = 0;
  launch(LaunchConfig{6, 70, 0, 2, 3}, [&] {
    for (u32 i = 0; i < 50; ++i) {
      add_cta(&of_block[bid()], 1u);
      add_gpu(&narrow, 1u);
      add_gpu(&wide, 1ull << 33);
      add_sys(&system, 3);
      add_release_sys(&system, 2);
      add_acq_rel_gpu(&ordered, 2);
      if (i % 10 == 0) pause();
    }
    if (cas_sys(&claims, 0, 1 + bid()) == 0) add_gpu(&claimed, 1u);
  });
  for (const u32 count : of_block) CHECK_EQ(count, 70u * 50);
  CHECK_EQ(narrow, 6u * 70 * 50);
  CHECK_EQ(wide, 6ull * 70 * 50 << 33);
  CHECK_EQ(system, 6ull * 70 * 50 * 5);
  CHECK_EQ(ordered, 6u * 70 * 50 * 2);
  CHECK_EQ(claimed, 1u);
}

TEST(simt_release_store_publishes_what_was_written_before) {
  // Block 0 writes and releases; block 1 acquires and reads. ThreadSanitizer sees a missing release or acquire here.
  u64 data[64] = {}, flag = 0;
  launch(LaunchConfig{2, 1, 0, 2, 0}, [&] {
    for (u64 round = 1; round <= 200; ++round) {
      if (bid() == 0) {
        for (u64& d : data) d = round;
        st_release_sys(&flag, 2 * round - 1);
        while (ld_acquire_sys(&flag) != 2 * round) pause();
      } else {
        while (ld_acquire_sys(&flag) != 2 * round - 1) pause();
        for (const u64 d : data) CHECK_EQ(d, round);
        st_release_sys(&flag, 2 * round);
      }
    }
  });
}

TEST(simt_bf16_rounds_to_nearest_even_and_keeps_nan) {
  for (u32 b = 0; b < 65536; ++b) {
    const float f = bf16_to_f(static_cast<u16>(b));
    const u16 back = f_to_bf16(f);
    if (f != f)
      CHECK_EQ(back, 0x7fc0);
    else
      CHECK_EQ(back, b);
  }
  CHECK_EQ(f_to_bf16(bits_f(0x3f808000)), 0x3f80);  // a tie goes to the even neighbour: down
  CHECK_EQ(f_to_bf16(bits_f(0x3f818000)), 0x3f82);  // and up
  CHECK_EQ(f_to_bf16(bits_f(0x3f808001)), 0x3f81);
  CHECK_EQ(f_to_bf16(bits_f(0x7f7fffff)), 0x7f80);  // beyond the largest: infinity
  CHECK_EQ(f_to_bf16(bits_f(0xff800001)), 0x7fc0);
}

TEST(simt_float_helpers) {
  const float nan = bits_f(0x7fc00000u);
  CHECK_EQ(fmax_(nan, 1.f), 1.f);
  CHECK_EQ(fmax_(1.f, nan), 1.f);
  CHECK_EQ(fmax_(2.f, 1.f), 2.f);
  const float a = 1.f + 0x1p-23f;
  CHECK_EQ(fma_(a, a, -1.f - 0x1p-22f), 0x1p-46f);  // only a fused multiply-add keeps the last bit
  CHECK_EQ(log2_(0.25f), -2.f);
  CHECK_EQ(exp2_(-3.f), 0.125f);
  CHECK_EQ(floor_(-0.5f), -1.f);
  CHECK(std::isnan(fabs_(nan)));
}

}  // namespace uccl::simt
