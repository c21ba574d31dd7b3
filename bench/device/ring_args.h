// What the host tells the ring benchmark's kernels; ring_programs.py fills the same bytes. No system header: NVRTC has
// none. Every pointer is one that the producer's side can use (on a GPU: device memory, or mapped host memory).
#pragma once
#include "ring/layout.h"
#include "wire/types.h"

namespace uccl {

struct RingBenchArgs {
  const RingView* rings;  // [num_rings]
  u64* abort;             // not 0: every push gives up
  u64* refused;           // pushes that found no room in time are added to it
  u64* round_trips;       // [warps][pushes] clock ticks from before a push until it is done; or null
  u64 timeout_ns;
  u64 interval;           // clock ticks between two pushes of one warp; 0: as fast as the rings take them
  u32 num_rings;
  u32 width;              // commands a push: 1 by one lane, more by a group of lanes
  u32 pushes;             // of each warp
  u32 stamped;            // 1: the remote offset carries the time before the push, see ring_stamp
};
static_assert(sizeof(RingBenchArgs) == 64);

struct ClockBenchArgs {
  const u64* question;  // host word: the round that is asked for
  u128* answer;         // host memory: (round, ns when it was seen)
  u64* result;          // [5]: clock and ns at the start, clock and ns at the end, smallest step of ns
  u64* abort;
  u64 timeout_ns;
  u64 rounds;
};
static_assert(sizeof(ClockBenchArgs) == 48);

// A command of the benchmark tells who made it and when: `key` the warp, the local offset its number within the warp,
// the remote offset the low 36 bits of the time (68 s until they repeat).
constexpr u64 ring_stamp(u64 ns) { return (ns & low_bits(36)) * kWireUnitBytes; }

}  // namespace uccl
