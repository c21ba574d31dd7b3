// Copies a row to where ranks on other cores read it and this one later writes again: through the caches or past them.
//
// Through the caches is faster as long as these cores share one. Where they do not (clusters of cores, sockets), every
// line must first be taken back from the readers' cache: 14 KiB then take 6 us instead of 1, past the caches 1.3 (AMD
// EPYC). The cores of a virtual machine may go from one case to the other, for seconds, while it runs. So each thread
// times some of its rows in both ways.
#pragma once
#include <atomic>

#include "wire/types.h"

namespace uccl::simt::host {

// Which way a thread's next row goes. Least times are compared, so a row that an interrupt fell into does not count.
// Used by one thread, whose fibers (warps) take turns; atomic because ThreadSanitizer takes each of these for a thread.
class StoreChoice {
 public:
  static constexpr u32 kTimedEvery = 16, kOtherEvery = 128, kPeriod = 512;  // rows; each divides the next
  static constexpr u64 kClearly = 2;  // so many times as long is clearly slower; cases are 0.8 and 4.5 apart

  struct Turn {
    bool past;   // the caches
    bool timed;  // took() is to be told
  };
  Turn next();
  // `cost` is the time for a byte, in any unit.
  void took(bool past, u64 cost);

 private:
  void decide();

  std::atomic<u32> row_{0};
  std::atomic<bool> past_{false};
  std::atomic<u64> least_[2] = {~0ull, ~0ull};  // through the caches, past them
};

// Smaller rows are not timed, for a clock is too coarse, and go through the caches.
inline constexpr u64 kTimedRowBytes = 4096;

// Addresses and size are multiples of 16 bytes.
void store_shared(u8* dst, const u8* src, u64 bytes);

}  // namespace uccl::simt::host
