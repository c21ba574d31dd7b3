// What a worker does when it found nothing to do: pause, then yield, then nap. Manners towards the other ranks of a
// small machine, never a protocol: any work starts the ladder again, and nothing depends on how long a rung takes.
#pragma once
#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>

#include "wire/types.h"

namespace uccl {

inline void cpu_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

class IdleLadder {
 public:
  static constexpr u32 kPauses = 64;       // about 2 us: the next command of a busy kernel comes within that
  static constexpr u32 kYields = 64;       // lets every other runnable thread of the core have several turns
  static constexpr u64 kFirstNapNs = 2000;

  IdleLadder(bool may_nap, u64 nap_ns) : may_nap_(may_nap && nap_ns > 0), longest_nap_ns_(nap_ns) {}

  // The kernel rounds every sleep up by the thread's timer slack, 50 us unless told otherwise.
  static void prepare_thread() { prctl(PR_SET_TIMERSLACK, 1000); }

  void reset() {
    turns_ = 0;
    next_nap_ns_ = kFirstNapNs;
  }

  // One rung. True when it was a nap.
  bool rest() {
    if (turns_ < kPauses) {
      ++turns_;
      cpu_pause();
      return false;
    }
    if (turns_ < kPauses + kYields || !may_nap_) {
      if (turns_ < kPauses + kYields) ++turns_;
      sched_yield();
      return false;
    }
    const timespec nap{0, static_cast<long>(std::min({next_nap_ns_, longest_nap_ns_, u64{999'999'999}}))};
    next_nap_ns_ = std::min(next_nap_ns_ * 2, longest_nap_ns_);
    clock_nanosleep(CLOCK_MONOTONIC, 0, &nap, nullptr);
    return true;
  }

 private:
  bool may_nap_;
  u64 longest_nap_ns_;
  u64 next_nap_ns_ = kFirstNapNs;
  u32 turns_ = 0;
};

}  // namespace uccl
