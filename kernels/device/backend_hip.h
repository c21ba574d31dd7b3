// AMD back end of simt.h: clang built-ins only, so neither ROCm headers nor device libraries are needed. Wave64 parts
// (gfx90a, gfx942, gfx950).
#pragma once
#include "wire/types.h"

#define UCCL_SIMT_GPU 1
#define KERNEL extern "C" __attribute__((global)) void
#define KERNEL_BOUNDS(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#define DEV static __attribute__((device)) inline __attribute__((always_inline))
#define DEV_MEMBER __attribute__((device)) inline __attribute__((always_inline))
#define UCCL_UNROLL _Pragma("unroll")

namespace uccl::simt {

inline constexpr u32 kWarp = 64;
using mask_t = u64;
inline constexpr u32 kSpinsPerCheck = 256;  // between two looks at abort (a PCIe read, about 1 us) and the clock

DEV u32 tid() { return __builtin_amdgcn_workitem_id_x(); }
DEV u32 bid() { return __builtin_amdgcn_workgroup_id_x(); }
DEV u32 ntid() { return __builtin_amdgcn_workgroup_size_x(); }
DEV u32 nbid() { return __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x(); }
DEV u32 lane() { return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0)); }

template <class S>
DEV S& smem() {
  extern __attribute__((shared)) __attribute__((aligned(128))) unsigned char shared_memory_[];
  return *reinterpret_cast<S*>(shared_memory_);
}

// Everything that this wave has stored or written back has come to where it goes.
DEV void wait_for_stores() { asm volatile("s_waitcnt vmcnt(0)" ::: "memory"); }

// Whoever releases behind a barrier releases what all waves of the block have stored, so each waits for its own before:
// compilers do not, since the waves of one block see each other's stores without it.
DEV void sync_block() {
  wait_for_stores();
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
DEV bool sync_block_and(bool p) {
  static __attribute__((shared)) u32 all;
  if (tid() == 0) all = 1;
  sync_block();
  if (!p) all = 0;  // many lanes may store the same zero
  sync_block();
  const bool result = all != 0;
  sync_block();
  return result;
}
DEV void sync_warp() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
template <class T>
DEV T shfl(T v, u32 l) {
  static_assert(sizeof(T) % 4 == 0, "shuffle whole words");
  union {
    T value;
    u32 words[sizeof(T) / 4];
  } both;
  both.value = v;
  UCCL_UNROLL
  for (u32 i = 0; i < sizeof(T) / 4; ++i)
    both.words[i] =
        static_cast<u32>(__builtin_amdgcn_ds_bpermute(static_cast<int>(l << 2), static_cast<int>(both.words[i])));
  return both.value;
}
template <class T>
DEV T shfl_xor(T v, u32 m) {
  return shfl(v, lane() ^ m);
}
DEV mask_t ballot(bool p) { return __builtin_amdgcn_ballot_w64(p); }
DEV u32 popcount(mask_t m) { return static_cast<u32>(__builtin_popcountll(m)); }
DEV u32 first_lane(mask_t m) { return static_cast<u32>(__builtin_ctzll(m)); }
DEV mask_t lane_mask_lt() { return (1ull << lane()) - 1; }
DEV u32 warp_sum(u32 v) {
  UCCL_UNROLL
  for (u32 d = kWarp / 2; d; d >>= 1) v += shfl_xor(v, d);
  return v;
}

DEV void pause() { __builtin_amdgcn_s_sleep(1); }
DEV void end_spin() {}
DEV u64 now_ns() { return __builtin_amdgcn_s_memrealtime() * 10; }  // a 100 MHz counter on gfx9

// Before the access that releases. The wait is written out: compilers before LLVM's pull request 178316 leave theirs away
// where they see no access outstanding, although the fence's write-back is one.
DEV void release_to_gpu() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
  wait_for_stores();
}
DEV void release_to_sys() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "");
  wait_for_stores();
}

#define UCCL_HIP_LOAD(name, order, scope, type) \
  DEV type name(const type* p) { return __hip_atomic_load(p, order, scope); }
#define UCCL_HIP_STORE(name, order, scope, type) \
  DEV void name(type* p, type v) { __hip_atomic_store(p, v, order, scope); }
#define UCCL_HIP_RELEASE(to, scope, type)              \
  DEV void st_release_##to(type* p, type v) {          \
    release_to_##to();                                 \
    __hip_atomic_store(p, v, __ATOMIC_RELAXED, scope); \
  }
#define UCCL_HIP_ADD(name, order, scope, type) \
  DEV type name(type* p, type v) { return __hip_atomic_fetch_add(p, v, order, scope); }
UCCL_HIP_LOAD(ld_acquire_sys, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM, u32)
UCCL_HIP_LOAD(ld_acquire_sys, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM, u64)
UCCL_HIP_LOAD(ld_relaxed_sys, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM, u32)
UCCL_HIP_LOAD(ld_relaxed_sys, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM, u64)
UCCL_HIP_LOAD(ld_acquire_gpu, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT, u32)
UCCL_HIP_LOAD(ld_acquire_gpu, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT, u64)
UCCL_HIP_LOAD(ld_relaxed_gpu, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT, u32)
UCCL_HIP_LOAD(ld_relaxed_gpu, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT, u64)
UCCL_HIP_RELEASE(sys, __HIP_MEMORY_SCOPE_SYSTEM, u32)
UCCL_HIP_RELEASE(sys, __HIP_MEMORY_SCOPE_SYSTEM, u64)
UCCL_HIP_STORE(st_relaxed_sys, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM, u32)
UCCL_HIP_STORE(st_relaxed_sys, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM, u64)
UCCL_HIP_RELEASE(gpu, __HIP_MEMORY_SCOPE_AGENT, u32)
UCCL_HIP_RELEASE(gpu, __HIP_MEMORY_SCOPE_AGENT, u64)
UCCL_HIP_STORE(st_relaxed_gpu, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT, u32)
UCCL_HIP_STORE(st_relaxed_gpu, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT, u64)
UCCL_HIP_LOAD(ld_acquire_cta, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_WORKGROUP, u32)
UCCL_HIP_STORE(st_release_cta, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_WORKGROUP, u32)
UCCL_HIP_ADD(add_cta, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP, u32)
UCCL_HIP_ADD(add_gpu, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT, u32)
UCCL_HIP_ADD(add_gpu, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT, u64)
UCCL_HIP_ADD(add_sys, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM, u64)
#undef UCCL_HIP_LOAD
#undef UCCL_HIP_STORE
#undef UCCL_HIP_RELEASE
#undef UCCL_HIP_ADD
DEV u32 add_acq_rel_gpu(u32* p, u32 v) {
  release_to_gpu();
  return __hip_atomic_fetch_add(p, v, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT);
}
DEV u64 add_release_sys(u64* p, u64 v) {
  release_to_sys();
  return __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}

using word_pair = u64 __attribute__((ext_vector_type(2)));

// AMD has no 128-bit atomic: a release, then one global_store_dwordx4 past the caches. A torn read is harmless because
// the lap parity is in both words (command.h).
DEV void st_release_sys(u128* p, u64 lo, u64 hi) {
  release_to_sys();
  const word_pair pair = {lo, hi};
  asm volatile("global_store_dwordx4 %0, %1, off " UCCL_SIMT_STORE_SYSTEM ::"v"(p), "v"(pair) : "memory");
}
DEV u32 cas_sys(u32* p, u32 expect, u32 desired) {
  release_to_sys();
  __hip_atomic_compare_exchange_strong(p, &expect, desired, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE,
                                       __HIP_MEMORY_SCOPE_SYSTEM);
  return expect;
}

DEV u128 ld_nc(const u128* p) {
  const word_pair v = __builtin_nontemporal_load(reinterpret_cast<const word_pair*>(p));
  return u128{v.x, v.y};
}
DEV void st_na(u128* p, u128 v) {
  const word_pair pair = {v.lo, v.hi};
  __builtin_nontemporal_store(pair, reinterpret_cast<word_pair*>(p));
}

DEV float bits_f(u32 u) { return __builtin_bit_cast(float, u); }
DEV u32 f_bits(float f) { return __builtin_bit_cast(u32, f); }
DEV float fma_(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEV float fmax_(float a, float b) { return __builtin_fmaxf(a, b); }
DEV float fabs_(float a) { return __builtin_fabsf(a); }
DEV float log2_(float a) { return __builtin_log2f(a); }
DEV float exp2_(float a) { return __builtin_exp2f(a); }
DEV float floor_(float a) { return __builtin_floorf(a); }

// Two floats to two e4m3 bytes (a low), saturating, ties to even; NaN is 0x7f. Without the OCP
// format in hardware: the software path of fp8.h.
#if defined(UCCL_SIMT_HARDWARE_E4M3)
inline constexpr bool kHardwareE4m3 = true;
DEV float e4m3_range(float a) {  // the instruction saturates only in a mode that a kernel cannot count on
  const float clamped = a > 448.f ? 448.f : a < -448.f ? -448.f : a;
  return a != a ? bits_f(0x7fc00000u) : clamped;
}
DEV u32 e4m3x2_hardware(float a, float b) {
  return static_cast<u32>(__builtin_amdgcn_cvt_pk_fp8_f32(e4m3_range(a), e4m3_range(b), 0, false)) & 0xffffu;
}
#else
inline constexpr bool kHardwareE4m3 = false;
DEV u32 e4m3x2_hardware(float, float) { return 0; }
#endif

}  // namespace uccl::simt
