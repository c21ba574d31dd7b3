// CPU back end of simt.h: every lane is a fiber (runtime.h), so the kernels that GPUs run also run here, unchanged.
// -DUCCL_SIMT_WARP=64 runs them as AMD's wave64; with 1 a warp is one lane, which needs no fiber switch to meet itself.
// Names of the widths differ and kernels are static, so that several can be in one program.
#pragma once
#include <chrono>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "wire/types.h"

#ifndef UCCL_SIMT_WARP
#define UCCL_SIMT_WARP 32
#endif
#if UCCL_SIMT_WARP == 1
#define UCCL_SIMT_WIDTH wave1
#elif UCCL_SIMT_WARP == 32
#define UCCL_SIMT_WIDTH wave32
#elif UCCL_SIMT_WARP == 64
#define UCCL_SIMT_WIDTH wave64
#else
#error "UCCL_SIMT_WARP is 1, 32 or 64"
#endif

#define UCCL_SIMT_HOST 1
#define KERNEL static inline void
#define KERNEL_BOUNDS(threads)
#define DEV static inline __attribute__((always_inline))
#define DEV_MEMBER inline __attribute__((always_inline))
#define UCCL_UNROLL _Pragma("GCC unroll 8")

namespace uccl::simt {
inline namespace UCCL_SIMT_WIDTH {
inline constexpr u32 kWarp = UCCL_SIMT_WARP;
using mask_t = std::conditional_t<kWarp == 64, u64, u32>;
inline constexpr u32 kSpinsPerCheck = 16;  // a spin here is a turn of the scheduler, so look at abort more often

// Who the running lane is. First member of the runtime's lane; null outside of a launch.
struct LaneView {
  u32 tid, bid, ntid, nbid, lane;
  u8* shared;
};
extern thread_local LaneView* current_lane __attribute__((tls_model("initial-exec")));

// What a simulator puts in the place of time and of the runtime's rests, on the thread that sets it (runtime.h). Null
// otherwise: the machine's own clock, and pauses and naps.
struct HostHooks {
  u64 now_ns;  // what now_ns() says
  void (*after_pass)(HostHooks* self, bool progress);  // after every turn of all warps of a launch; may switch fibers
};
extern thread_local HostHooks* host_hooks __attribute__((tls_model("initial-exec")));

// runtime.cpp. All live lanes of the warp (block) take part in each of these.
void meet_lanes();
u64 exchange_lanes(u64 value, u32 source_lane);
mask_t vote_lanes(bool p);
const u64* gather_lanes(u64 value);  // every lane's value, 0 for lanes that have ended; valid until the next collective
void block_barrier();
bool block_barrier_and(bool p);
void yield_lane();
void note_progress();

DEV u32 tid() { return current_lane->tid; }
DEV u32 bid() { return current_lane->bid; }
DEV u32 ntid() { return current_lane->ntid; }
DEV u32 nbid() { return current_lane->nbid; }
DEV u32 lane() { return current_lane->lane; }
template <class S>
DEV S& smem() {
  return *reinterpret_cast<S*>(current_lane->shared);
}

DEV void sync_block() { block_barrier(); }
DEV bool sync_block_and(bool p) { return block_barrier_and(p); }
DEV void sync_warp() {
  if constexpr (kWarp != 1) meet_lanes();
}
template <class T>
DEV T shfl(T v, u32 l) {
  static_assert(sizeof(T) <= sizeof(u64));
  if constexpr (kWarp == 1) return v;
  u64 word = 0;
  std::memcpy(&word, &v, sizeof v);
  word = exchange_lanes(word, l);
  std::memcpy(&v, &word, sizeof v);
  return v;
}
template <class T>
DEV T shfl_xor(T v, u32 m) {
  return shfl(v, lane() ^ m);
}
DEV mask_t ballot(bool p) { return kWarp == 1 ? p : vote_lanes(p); }
DEV u32 popcount(mask_t m) { return static_cast<u32>(__builtin_popcountll(m)); }
DEV u32 first_lane(mask_t m) { return static_cast<u32>(__builtin_ctzll(m)); }
DEV mask_t lane_mask_lt() { return (static_cast<mask_t>(1) << lane()) - 1; }
DEV u32 warp_sum(u32 v) {
  if constexpr (kWarp == 1) return v;
  const u64* all = gather_lanes(v);
  u32 sum = 0;
  for (u32 i = 0; i < kWarp; ++i) sum += static_cast<u32>(all[i]);
  return sum;
}

// One spin step: the other lanes' turn. On a thread that runs no kernel it yields the processor.
DEV void pause() { yield_lane(); }
// A spin ended with what it waited for: the runtime need not nap yet.
DEV void end_spin() { note_progress(); }
DEV u64 now_ns() {
  if (host_hooks != nullptr) return __atomic_load_n(&host_hooks->now_ns, __ATOMIC_RELAXED);
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<u64>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

template <class T>
DEV T ld_acquire_sys(const T* p) {
  return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
template <class T>
DEV T ld_relaxed_sys(const T* p) {
  return __atomic_load_n(p, __ATOMIC_RELAXED);
}
template <class T>
DEV T ld_acquire_gpu(const T* p) {
  return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
template <class T>
DEV T ld_relaxed_gpu(const T* p) {
  return __atomic_load_n(p, __ATOMIC_RELAXED);
}
template <class T>
DEV void st_release_sys(T* p, std::type_identity_t<T> v) {
  __atomic_store_n(p, v, __ATOMIC_RELEASE);
}
template <class T>
DEV void st_relaxed_sys(T* p, std::type_identity_t<T> v) {
  __atomic_store_n(p, v, __ATOMIC_RELAXED);
}
template <class T>
DEV void st_release_gpu(T* p, std::type_identity_t<T> v) {
  __atomic_store_n(p, v, __ATOMIC_RELEASE);
}
template <class T>
DEV void st_relaxed_gpu(T* p, std::type_identity_t<T> v) {
  __atomic_store_n(p, v, __ATOMIC_RELAXED);
}
DEV u32 ld_acquire_cta(const u32* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
DEV void st_release_cta(u32* p, u32 v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
// A block is one thread's: nothing comes between the load and the store.
DEV u32 add_cta(u32* p, u32 v) {
  const u32 old = __atomic_load_n(p, __ATOMIC_RELAXED);
  __atomic_store_n(p, old + v, __ATOMIC_RELAXED);
  return old;
}
// Two release stores: the lap parity in both words makes a reader between them wait (command.h).
DEV void st_release_sys(u128* p, u64 lo, u64 hi) {
  __atomic_store_n(&p->hi, hi, __ATOMIC_RELEASE);
  __atomic_store_n(&p->lo, lo, __ATOMIC_RELEASE);
}
template <class T>
DEV T add_gpu(T* p, std::type_identity_t<T> v) {
  return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
DEV u32 add_acq_rel_gpu(u32* p, u32 v) { return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL); }
DEV u64 add_sys(u64* p, u64 v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
DEV u64 add_release_sys(u64* p, u64 v) { return __atomic_fetch_add(p, v, __ATOMIC_RELEASE); }
DEV u32 cas_sys(u32* p, u32 expect, u32 desired) {
  __atomic_compare_exchange_n(p, &expect, desired, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  return expect;
}
DEV u128 ld_nc(const u128* p) { return *p; }
DEV void st_na(u128* p, u128 v) { *p = v; }

DEV float bits_f(u32 u) { return __builtin_bit_cast(float, u); }
DEV u32 f_bits(float f) { return __builtin_bit_cast(u32, f); }
DEV float fma_(float a, float b, float c) { return std::fma(a, b, c); }  // fused also where the CPU has no instruction
DEV float fmax_(float a, float b) { return a > b || b != b ? a : b; }
DEV float fabs_(float a) { return __builtin_fabsf(a); }
DEV float log2_(float a) { return std::log2(a); }
DEV float exp2_(float a) { return std::exp2(a); }
DEV float floor_(float a) { return std::floor(a); }

template <u32 N>
DEV float group_max(float v) {  // one rendezvous instead of log2(N) shuffles
  const u64* group = gather_lanes(f_bits(v)) + (lane() & ~(N - 1));
  for (u32 i = 0; i < N; ++i) v = fmax_(v, bits_f(static_cast<u32>(group[i])));
  return v;
}

inline constexpr bool kHardwareE4m3 = false;
DEV u32 e4m3x2_hardware(float, float) { return 0; }

}  // namespace UCCL_SIMT_WIDTH
}  // namespace uccl::simt
