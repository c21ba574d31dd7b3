// Kernels that use every function of the device API once: what the compile tests hand to NVRTC and to the HIP compiler,
// and what the host tests run (test_probe_kernels.cpp), so that no back end misses a function.
#pragma once
#include "kernels/device/barrier.h"
#include "kernels/device/copy.h"
#include "kernels/device/copy_lanes.h"
#include "kernels/device/fp8.h"
#include "kernels/device/match.h"
#include "kernels/device/ring_push.h"
#include "kernels/device/simt.h"
#include "kernels/device/wait.h"
#include "wire/immediate.h"

namespace uccl {

struct ProbeArgs {
  u64* words;  // 64, zero
  u32* halves;  // 64, zero
  float* floats;  // 64
  WaitContext wait;
  u64 timeout_ns;
};
struct ProbeShared {
  u32 value[32];
};

// One block. words[i], halves[i], floats[i] get results that test_probe_kernels.cpp knows.
KERNEL KERNEL_BOUNDS(128) probe_words(ProbeArgs a) {
  using namespace simt;
  ProbeShared& shared = smem<ProbeShared>();
  if (lane() == 0) shared.value[warp()] = warp() + 1;
  sync_block();
  const bool every = sync_block_and(shared.value[num_warps() - 1] == num_warps());
  if (tid() == 0) {
    u32* const h = a.halves;
    u64* const w = a.words;
    h[0] = every;
    add_gpu(&h[1], 3u);
    add_cta(&h[1], 2u);
    h[2] = add_acq_rel_gpu(&h[1], 2u);
    h[3] = cas_sys(&h[1], 7u, 9u);
    h[4] = cas_sys(&h[1], 7u, 11u);
    st_relaxed_sys(&h[5], ld_relaxed_sys(&h[1]) + 1);
    st_release_sys(&h[6], ld_acquire_sys(&h[5]) + 1);
    st_relaxed_gpu(&h[7], ld_relaxed_gpu(&h[6]) + 1);
    st_release_gpu(&h[8], ld_acquire_gpu(&h[7]) + 1);
    add_gpu(&w[0], 1ull << 40);
    w[1] = add_sys(&w[0], 3);
    st_relaxed_sys(&w[2], ld_relaxed_sys(&w[0]) + 1);
    st_release_sys(&w[3], ld_acquire_sys(&w[2]) + 1);
    st_relaxed_gpu(&w[4], ld_relaxed_gpu(&w[3]) + 1);
    st_release_gpu(&w[5], ld_acquire_gpu(&w[4]) + 1);
    st_release_sys(reinterpret_cast<u128*>(&w[6]), 17, 18);
    st_na(reinterpret_cast<u128*>(&w[8]), ld_nc(reinterpret_cast<const u128*>(&w[6])));
    const u64 before = now_ns();
    pause();
    end_spin();
    w[10] = now_ns() >= before;
    w[11] = bid() + nbid() + ntid();
    w[12] = kSpinsPerCheck + kWarp;
  }
}

// One warp.
KERNEL KERNEL_BOUNDS(64) probe_lanes(ProbeArgs a) {
  using namespace simt;
  const mask_t even = ballot(lane() % 2 == 0);
  const u32 sum = warp_sum(lane());
  const u64 wide = shfl((static_cast<u64>(lane()) << 32) + 1, 5u);
  const u32 across = shfl_xor(lane(), 1u);
  const float largest = warp_max(static_cast<float>(lane()));
  const float grouped = group_max<16>(static_cast<float>(lane()));
  sync_warp();
  if (lane() == 3) {
    a.halves[10] = popcount(even);
    a.halves[11] = first_lane(even << 1);
    a.halves[12] = popcount(lane_mask_lt());
    a.halves[13] = sum;
    a.halves[14] = across;
    a.words[20] = wide;
    float* const f = a.floats;
    f[0] = largest;
    f[1] = grouped;
    f[2] = fma_(3.f, 4.f, 5.f);
    f[3] = fmax_(bits_f(0x7fc00000u), fabs_(-2.f));
    f[4] = log2_(8.f);
    f[5] = exp2_(4.f);
    f[6] = floor_(-1.5f);
    f[7] = bf16_to_f(f_to_bf16(1.f + 1.f / 256));
    f[8] = e4m3_to_f(static_cast<u8>(e4m3x2(0.3f, 1000.f) >> 8));
    f[9] = fp8_scale(448.f, true).scale;
    f[10] = ue8m0_to_f(ue8m0(4.f));
    a.halves[15] = e4m3_software(0.3f) | e4m3x2(0.3f, -0.3f) << 8;
    a.halves[16] = f_bits(1.f);
  }
}

struct ProbeRowArgs {
  const u16* x;
  const u16* const* rows;
  const float* weights;
  u8* bytes;
  float* scales;
  u32* packed;
  u16* out;
  u32 hidden, count;
};

// One warp: the row helpers, and their lane versions on every processor.
KERNEL KERNEL_BOUNDS(64) probe_rows(ProbeRowArgs a) {
  using namespace simt;
  quantize_row(a.x, a.bytes, a.scales, a.hidden, false);
  sync_warp();
  pack_ue8m0(a.scales, a.packed, a.hidden / kScaleGroup);
  zero_row(a.bytes, a.hidden);
  sync_warp();
  quantize_row_ue8m0(a.x, a.bytes, a.packed, a.hidden);
  reduce_rows(a.out, a.rows, a.weights, a.count, a.hidden, RowBias{a.x, nullptr});
  sync_warp();
  copy_row(a.bytes, reinterpret_cast<const u8*>(a.out), 2ull * a.hidden);
  lanes::zero_row(a.bytes, a.hidden);
  lanes::copy_row(a.bytes, reinterpret_cast<const u8*>(a.out), 2ull * a.hidden);
  lanes::quantize_row(a.x, a.bytes, a.scales, a.hidden, true);
  lanes::quantize_row_ue8m0(a.x, a.bytes, a.packed, a.hidden);
  lanes::reduce_rows(lanes::ReduceArgs{a.out, a.rows, a.weights, a.count, a.hidden, a.x, a.x});
}

struct ProbeMatchArgs {
  const short* ids;
  u32* counts;  // [kWarp]
  u32* indices;  // [n] of the ids that name a lane, in the order of (lane, index)
  u32 n, first, width;
};

// One warp: the ids' matches, and their lane versions on every processor.
KERNEL KERNEL_BOUNDS(64) probe_match(ProbeMatchArgs a) {
  using namespace simt;
  u32 count[kMatchesPerLane], begin[kMatchesPerLane] = {};
  count_matches(a.ids, a.n, a.first, a.width, count);
  a.counts[lane()] = count[0] + lanes::count_matches(a.ids, a.n, a.first, a.width);
  for (u32 l = 0; l < kWarp; ++l) {
    const u32 theirs = shfl(count[0], l);
    if (l < lane()) begin[0] += theirs;
  }
  const auto take = [=](u32, u32 at, u32 index) { a.indices[at] = index; };
  for_each_match(a.ids, a.n, a.first, a.width, begin, take);
  lanes::for_each_match(a.ids, a.n, a.first, a.width, begin[0], take);
}

struct ProbeRingArgs {
  RingView ring;
  u32* barrier;
  u64* tickets;  // one a lane
  WaitContext wait;
  u64 timeout_ns;
  u32 num_ranks;
};

KERNEL KERNEL_BOUNDS(256) probe_ring(ProbeRingArgs a) {
  const WaitContext wait = begin_wait(a.wait, a.timeout_ns);
  Command c;
  c.op = Op::kWrite;
  c.peer = simt::bid();
  c.key = epoch_key(Phase::kCombine, simt::tid());
  c.bytes = 16;
  ControlLayout layout;
  layout.num_ranks = a.num_ranks;
  layout.num_channels = 2;
  c.remote_offset = align_up(layout.tail(Direction::kCombine, 0, 1), 16);
  const bool met = sync_grid(a.barrier, wait, [] { return false; });
  u64 ticket = push_group(a.ring, c, simt::lane() % 3 != 0, wait);
  if (simt::lane() == 0) ticket = push(a.ring, c, wait);
  if (simt::lane() == 0 && !wait_done(a.ring, ticket, wait, WaitSite{WaitPhase::kTeardown, c.peer, {}, 0}))
    record_fault(wait, WaitSite{WaitPhase::kTeardown, kNoPeer, {}, met}, FaultKind::kTimeout, aborted(wait));
  a.tickets[simt::bid() * simt::ntid() + simt::tid()] = ticket;
}

// Nothing but one push a warp: to see its instructions.
KERNEL KERNEL_BOUNDS(256) probe_push(ProbeRingArgs a) {
  const WaitContext wait = begin_wait(a.wait, a.timeout_ns);
  Command c;
  c.op = Op::kWrite;
  c.peer = simt::bid();
  c.bytes = 16;
  u64 ticket = kNoTicket;
  if (simt::lane() == 0) ticket = push(a.ring, c, wait);
  a.tickets[simt::bid() * simt::ntid() + simt::tid()] = ticket;
}
KERNEL KERNEL_BOUNDS(256) probe_push_group(ProbeRingArgs a) {
  const WaitContext wait = begin_wait(a.wait, a.timeout_ns);
  Command c;
  c.op = Op::kWrite;
  c.peer = simt::bid();
  c.bytes = 16;
  a.tickets[simt::bid() * simt::ntid() + simt::tid()] = push_group(a.ring, c, simt::lane() % 3 != 0, wait);
}

}  // namespace uccl
