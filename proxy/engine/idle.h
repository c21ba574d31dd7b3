// What a worker does when it found nothing to do: pause, then yield, then nap. Manners towards the other ranks of a
// small machine, never a protocol: any work starts the ladder again, and nothing depends on how long a rung takes.
//
// How long it stays awake is learnt. Work that came while it was awake makes the next wait as long or longer; a wait that
// ended in a nap was in vain, and half of it will do next time. So who waits for a busy peer answers at once, and who
// waits for a slow one leaves the core to it.
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
  // Turns awake, of which the first half are pauses and the rest yields, so that every other runnable thread of the core
  // has several turns.
  static constexpr u32 kMostTurns = 128, kFewestTurns = 8;
  static constexpr u64 kFirstNapNs = 2000;

  IdleLadder(bool may_nap, u64 nap_ns) : may_nap_(may_nap && nap_ns > 0), longest_nap_ns_(nap_ns) {}

  // The kernel rounds every sleep up by the thread's timer slack, 50 us unless told otherwise.
  static void prepare_thread() { prctl(PR_SET_TIMERSLACK, 1000); }

  void reset() {
    if (turns_ == 0) return;
    if (napped_)
      awake_turns_ = std::max(awake_turns_ / 2, kFewestTurns);
    else if (turns_ > awake_turns_ / 2)
      awake_turns_ = std::min(awake_turns_ * 2, kMostTurns);
    turns_ = 0;
    napped_ = false;
    next_nap_ns_ = kFirstNapNs;
  }

  // One rung. True when it was a nap.
  bool rest() {
    if (turns_ < awake_turns_ / 2) {
      ++turns_;
      cpu_pause();
      return false;
    }
    if (turns_ < awake_turns_ || !may_nap_) {
      if (turns_ < awake_turns_) ++turns_;
      sched_yield();
      return false;
    }
    napped_ = true;
    const timespec nap{0, static_cast<long>(std::min({next_nap_ns_, longest_nap_ns_, u64{999'999'999}}))};
    next_nap_ns_ = std::min(next_nap_ns_ * 2, longest_nap_ns_);
    clock_nanosleep(CLOCK_MONOTONIC, 0, &nap, nullptr);
    return true;
  }

 private:
  bool may_nap_;
  u64 longest_nap_ns_;
  u64 next_nap_ns_ = kFirstNapNs;
  u32 awake_turns_ = kMostTurns;
  u32 turns_ = 0;
  bool napped_ = false;
};

}  // namespace uccl
