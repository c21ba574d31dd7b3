// NVIDIA back end of simt.h: PTX and built-ins only, so NVRTC needs no CUDA header. Needs sm_80 or later.
//
// The compiler cannot see the order that inline PTX implies, hence "memory" on everything that orders.
#pragma once
#include "wire/types.h"

#define UCCL_SIMT_GPU 1
#define KERNEL extern "C" __global__ void
#define KERNEL_BOUNDS(threads) __launch_bounds__(threads, 1)  // 1: do not spill for the sake of more blocks an SM
#define DEV static __device__ __forceinline__
#define DEV_MEMBER __device__ __forceinline__
#define UCCL_UNROLL _Pragma("unroll")

namespace uccl::simt {

inline constexpr u32 kWarp = 32;
using mask_t = u32;
inline constexpr u32 kSpinsPerCheck = 256;  // between two looks at abort (a PCIe read, about 1 us) and the clock

DEV u32 tid() { return threadIdx.x; }
DEV u32 bid() { return blockIdx.x; }
DEV u32 ntid() { return blockDim.x; }
DEV u32 nbid() { return gridDim.x; }
DEV u32 lane() { return threadIdx.x & 31; }

template <class S>
DEV S& smem() {
  extern __shared__ __align__(128) unsigned char shared_memory_[];
  return *reinterpret_cast<S*>(shared_memory_);
}

DEV void sync_block() { __syncthreads(); }
DEV bool sync_block_and(bool p) { return __syncthreads_and(p); }
DEV void sync_warp() { __syncwarp(); }
template <class T>
DEV T shfl(T v, u32 l) {
  return __shfl_sync(~0u, v, static_cast<int>(l));
}
template <class T>
DEV T shfl_xor(T v, u32 m) {
  return __shfl_xor_sync(~0u, v, static_cast<int>(m));
}
DEV mask_t ballot(bool p) { return __ballot_sync(~0u, p); }
DEV u32 popcount(mask_t m) { return static_cast<u32>(__popc(m)); }
DEV u32 first_lane(mask_t m) { return static_cast<u32>(__ffs(static_cast<int>(m)) - 1); }
DEV mask_t lane_mask_lt() { return (1u << lane()) - 1; }
DEV u32 warp_sum(u32 v) { return __reduce_add_sync(~0u, v); }

DEV void pause() { __nanosleep(32); }
DEV void end_spin() {}
DEV u64 now_ns() {
  u64 t;
  asm volatile("mov.u64 %0,%%globaltimer;" : "=l"(t));
  return t;
}

#define UCCL_PTX_LOAD(name, order, type, suffix, constraint)                                  \
  DEV type name(const type* p) {                                                              \
    type v;                                                                                   \
    asm volatile("ld." order "." suffix " %0,[%1];" : "=" constraint(v) : "l"(p) : "memory"); \
    return v;                                                                                 \
  }
#define UCCL_PTX_STORE(name, order, type, suffix, constraint)                            \
  DEV void name(type* p, type v) {                                                       \
    asm volatile("st." order "." suffix " [%0],%1;" ::"l"(p), constraint(v) : "memory"); \
  }
#define UCCL_PTX_ADD(name, order, type, suffix, constraint)         \
  DEV type name(type* p, type v) {                                  \
    type old;                                                       \
    asm volatile("atom.add." order ".global." suffix " %0,[%1],%2;" \
                 : "=" constraint(old)                              \
                 : "l"(p), constraint(v)                            \
                 : "memory");                                       \
    return old;                                                     \
  }
// Without a state space where words of shared memory pass too: .global on such an address faults.
UCCL_PTX_LOAD(ld_acquire_sys, "acquire.sys.global", u32, "u32", "r")
UCCL_PTX_LOAD(ld_acquire_sys, "acquire.sys.global", u64, "u64", "l")
UCCL_PTX_LOAD(ld_relaxed_sys, "relaxed.sys.global", u32, "u32", "r")
UCCL_PTX_LOAD(ld_relaxed_sys, "relaxed.sys.global", u64, "u64", "l")
UCCL_PTX_LOAD(ld_acquire_gpu, "acquire.gpu", u32, "u32", "r")
UCCL_PTX_LOAD(ld_acquire_gpu, "acquire.gpu", u64, "u64", "l")
UCCL_PTX_LOAD(ld_relaxed_gpu, "relaxed.gpu", u32, "u32", "r")
UCCL_PTX_LOAD(ld_relaxed_gpu, "relaxed.gpu", u64, "u64", "l")
UCCL_PTX_STORE(st_release_sys, "release.sys.global", u32, "u32", "r")
UCCL_PTX_STORE(st_release_sys, "release.sys.global", u64, "u64", "l")
UCCL_PTX_STORE(st_relaxed_sys, "relaxed.sys.global", u32, "u32", "r")
UCCL_PTX_STORE(st_relaxed_sys, "relaxed.sys.global", u64, "u64", "l")
UCCL_PTX_STORE(st_release_gpu, "release.gpu", u32, "u32", "r")
UCCL_PTX_STORE(st_release_gpu, "release.gpu", u64, "u64", "l")
UCCL_PTX_STORE(st_relaxed_gpu, "relaxed.gpu", u32, "u32", "r")
UCCL_PTX_STORE(st_relaxed_gpu, "relaxed.gpu", u64, "u64", "l")
UCCL_PTX_LOAD(ld_acquire_cta, "acquire.cta", u32, "u32", "r")
UCCL_PTX_STORE(st_release_cta, "release.cta", u32, "u32", "r")
UCCL_PTX_ADD(add_cta, "relaxed.cta", u32, "u32", "r")
UCCL_PTX_ADD(add_gpu, "relaxed.gpu", u32, "u32", "r")
UCCL_PTX_ADD(add_gpu, "relaxed.gpu", u64, "u64", "l")
UCCL_PTX_ADD(add_acq_rel_gpu, "acq_rel.gpu", u32, "u32", "r")
UCCL_PTX_ADD(add_sys, "relaxed.sys", u64, "u64", "l")
UCCL_PTX_ADD(add_release_sys, "release.sys", u64, "u64", "l")
#undef UCCL_PTX_LOAD
#undef UCCL_PTX_STORE
#undef UCCL_PTX_ADD

// One 16-byte store (STG.E.128.STRONG.SYS after MEMBAR.SYS). Only .b128 is single-copy atomic by the PTX text.
DEV void st_release_sys(u128* p, u64 lo, u64 hi) {
  asm volatile("{.reg .b128 t; mov.b128 t,{%1,%2}; st.release.sys.global.b128 [%0],t;}" ::"l"(p), "l"(lo), "l"(hi)
               : "memory");
}
DEV u32 cas_sys(u32* p, u32 expect, u32 desired) {
  u32 old;
  asm volatile("atom.cas.acq_rel.sys.global.b32 %0,[%1],%2,%3;"
               : "=r"(old)
               : "l"(p), "r"(expect), "r"(desired)
               : "memory");
  return old;
}

// Streaming access that leaves L1 alone. Not ld.global.nc: rows that arrive while the kernel runs are not read-only
// for its whole life, which .nc demands.
DEV u128 ld_nc(const u128* p) {
  u128 v;
  asm volatile("ld.global.L1::no_allocate.v2.u64 {%0,%1},[%2];" : "=l"(v.lo), "=l"(v.hi) : "l"(p) : "memory");
  return v;
}
DEV void st_na(u128* p, u128 v) {
  asm volatile("st.global.L1::no_allocate.v2.u64 [%0],{%1,%2};" ::"l"(p), "l"(v.lo), "l"(v.hi) : "memory");
}

DEV float bits_f(u32 u) { return __uint_as_float(u); }
DEV u32 f_bits(float f) { return __float_as_uint(f); }
DEV float fma_(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEV float fmax_(float a, float b) { return fmaxf(a, b); }
DEV float fabs_(float a) { return fabsf(a); }
DEV float log2_(float a) { return log2f(a); }
DEV float exp2_(float a) { return exp2f(a); }
DEV float floor_(float a) { return floorf(a); }

// Two floats to two e4m3 bytes (a low), saturating, ties to even; NaN is 0x7f.
#if defined(UCCL_SIMT_HARDWARE_E4M3)
inline constexpr bool kHardwareE4m3 = true;
DEV u32 e4m3x2_hardware(float a, float b) {
  u16 r;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0,%1,%2;" : "=h"(r) : "f"(b), "f"(a));
  return r;
}
#else
inline constexpr bool kHardwareE4m3 = false;
DEV u32 e4m3x2_hardware(float, float) { return 0; }
#endif

}  // namespace uccl::simt
