// The device API: everything a kernel may use, on NVIDIA, AMD and the CPU. Kernels include this file (and the helpers
// beside it) and nothing of a vendor, so NVRTC needs no header folder but ours. This file picks the back end; vendor
// conditionals live here and in the back ends only.
//
// Ordering: release stores and acquire loads, no stand-alone fence, so that ThreadSanitizer can follow the host build.
// `_sys` is visible to CPUs, NICs and peers; `_gpu` to every block of this device; `_cta` to its own block.
#pragma once
#include "wire/types.h"

// What a processor has: OCP e4m3 conversion (sm_89 and later, gfx950; gfx942 has FNUZ, another format), and on AMD how a
// store says "system scope".
#if (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890) || defined(__gfx950__)
#define UCCL_SIMT_HARDWARE_E4M3 1
#endif
#if defined(__gfx942__) || defined(__gfx950__)
#define UCCL_SIMT_STORE_SYSTEM "sc0 sc1"
#else
#define UCCL_SIMT_STORE_SYSTEM "glc slc"
#endif

#if defined(__CUDACC_RTC__) || defined(__CUDACC__)
#include "kernels/device/backend_cuda.h"
#elif defined(__HIP_DEVICE_COMPILE__)
#include "kernels/device/backend_hip.h"
#elif defined(__HIP__)
#error "kernels have no host pass: compile them with --cuda-device-only"
#else
#include "kernels/host/backend_host.h"
#endif

namespace uccl::simt {

// Bits of a mask_t above the warp do not exist: mask_t is exactly kWarp bits wide, where there is such a type.
static_assert(sizeof(mask_t) * 8 == kWarp || kWarp == 1);

DEV u32 warp() { return tid() / kWarp; }
DEV u32 num_warps() { return (ntid() + kWarp - 1) / kWarp; }

// The largest of each aligned group of N lanes (N a power of two), in every lane of the group. NaN counts as absent.
#if !defined(UCCL_SIMT_HOST)
template <u32 N>
DEV float group_max(float v) {
  UCCL_UNROLL
  for (u32 d = N / 2; d; d >>= 1) v = fmax_(v, shfl_xor(v, d));
  return v;
}
#endif
DEV float warp_max(float v) { return group_max<kWarp>(v); }

// Lanes run side by side, so a warp does well to share out what one lane could do alone. On a CPU they take turns.
#if defined(UCCL_SIMT_HOST)
inline constexpr bool kLanesInParallel = false;
#else
inline constexpr bool kLanesInParallel = true;
#endif

// The sum of `v` over the lanes of the warp up to this one.
DEV u32 sum_up_to(u32 v) {
  for (u32 d = 1; d < kWarp; d *= 2) {
    const u32 below = shfl(v, (lane() + kWarp - d) % kWarp);
    if (lane() >= d) v += below;
  }
  return v;
}

// Deals the rows of owners 0 to `owners`, each in `pieces`, round `warps` warps, of which this one is number `warp`: owners
// ascending, then rows. Warp-collective. One lane an owner calls count(owner); take(owner, row, piece) says whether to go
// on. Returns whether all did.
template <class Count, class Take>
DEV bool deal_rows(u32 owners, u32 pieces, u32 warp, u32 warps, Count count, Take take) {
  u32 u = warp;  // this warp's next unit, among those of the owners from `base` on
  for (u32 base = 0; base < owners; base += kWarp) {
    const u32 owner = base + lane();
    const u32 up_to = sum_up_to(owner < owners ? count(owner) : 0);
    const u32 units = shfl(up_to, kWarp - 1) * pieces;
    for (; u < units; u += warps) {
      const u32 row = u / pieces;
      const u32 before = popcount(ballot(up_to <= row));  // owners, of this warp's lanes
      const u32 first = before == 0 ? 0 : shfl(up_to, before - 1);
      if (!take(base + before, row - first, u - row * pieces)) return false;
    }
    u -= units;
  }
  return true;
}

DEV float bf16_to_f(u16 v) { return bits_f(static_cast<u32>(v) << 16); }

// Round to nearest, ties to even. Every NaN becomes 0x7fc0, as in torch, so results do not depend on whose NaN it was.
DEV u16 f_to_bf16(float f) {
  const u32 u = f_bits(f);
  const u32 rounded = (u + 0x7fffu + (u >> 16 & 1)) >> 16;
  return static_cast<u16>((u & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

}  // namespace uccl::simt
