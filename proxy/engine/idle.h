// What a worker does when it found nothing to do: pause, then yield, then nap, and when nothing has happened for long,
// sleep until its rank's next call. Manners towards the other ranks of a small machine, never a protocol: any work starts
// the ladder again, and nothing depends on how long a rung takes.
//
// How long it stays awake is learnt. Work that came while it was awake makes the next wait as long or longer; a wait that
// ended in a nap was in vain, and half of it will do next time. So who waits for a busy peer answers at once, and who
// waits for a slow one leaves the core to it.
//
// A worker that has a core to itself never naps, since nothing ends a nap that a GPU's command comes in: it yields, and
// sleeps only once its rank seems to have stopped working.
#pragma once
#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>

#include "engine/doorbell.h"
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
  // Between calls: kernels may still push while a call waits for a peer, which rarely takes as long as the first.
  static constexpr u64 kAsleepAfterNs = 200'000'000, kSleepNs = 4'000'000;
  static constexpr u64 kAsleepWithoutNapsAfterNs = 120'000'000'000;

  // `lonely`: no work can come, so that nothing wakes it either.
  IdleLadder(bool may_nap, u64 nap_ns, bool lonely = false)
      : may_nap_(lonely || (may_nap && nap_ns > 0)), lonely_(lonely), longest_nap_ns_(lonely ? kSleepNs : nap_ns) {}

  // The kernel rounds every sleep up by the thread's timer slack, 50 us unless told otherwise.
  static void prepare_thread() { prctl(PR_SET_TIMERSLACK, 1000); }

  void reset() {
    if (turns_ == 0) return;
    if (napped_)
      awake_turns_ = std::max(awake_turns_ / 2, kFewestTurns);
    else if (turns_ > awake_turns_ / 2)
      awake_turns_ = std::min(awake_turns_ * 2, kMostTurns);
    wake();
  }
  // Work is announced: the ladder starts again, and learns nothing.
  void wake() {
    turns_ = 0;
    napped_ = asleep_ = false;
    next_nap_ns_ = kFirstNapNs;
  }

  enum class Rest { kAwake, kNap, kSleep };
  // One rung. The bell ends a sleep; one that naps is back soon enough.
  Rest rest(Doorbell& bell) {
    if (bell.heard()) {
      if (asleep_) wake();
      idle_since_ns_ = steady_ns();
    }
    if (turns_ < awake_turns_ / 2) {
      ++turns_;
      cpu_pause();
      return Rest::kAwake;
    }
    if (turns_ < awake_turns_) {
      ++turns_;
      sched_yield();
      return Rest::kAwake;
    }
    const u64 now_ns = steady_ns();
    if (!napped_) idle_since_ns_ = now_ns;
    napped_ = true;
    const u64 asleep_after_ns = may_nap_ ? kAsleepAfterNs : kAsleepWithoutNapsAfterNs;
    asleep_ = !lonely_ && now_ns - idle_since_ns_ >= asleep_after_ns && bell.may_sleep_long();
    if (asleep_) {
      bell.sleep(std::max(kSleepNs, longest_nap_ns_));
      return Rest::kSleep;
    }
    if (!may_nap_) {
      sched_yield();
      return Rest::kAwake;
    }
    const timespec nap{0, static_cast<long>(std::min({next_nap_ns_, longest_nap_ns_, u64{999'999'999}}))};
    next_nap_ns_ = std::min(next_nap_ns_ * 2, longest_nap_ns_);
    clock_nanosleep(CLOCK_MONOTONIC, 0, &nap, nullptr);
    return Rest::kNap;
  }

 private:
  bool may_nap_, lonely_;
  u64 longest_nap_ns_;
  u64 next_nap_ns_ = kFirstNapNs;
  u32 awake_turns_ = kMostTurns;
  u32 turns_ = 0;
  u64 idle_since_ns_ = 0;  // valid when napped_
  bool napped_ = false;  // it was awake for all its turns in vain
  bool asleep_ = false;
};

}  // namespace uccl
