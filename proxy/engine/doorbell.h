// How a rank's host wakes its proxy: two words of the control segment and a futex on the first, which works across
// processes. It is rung when kernels are about to be launched, so that a proxy may sleep long between calls and still be
// awake before the first command comes.
//
// Nothing depends on it: a sleep ends by itself (idle.h), so a command that nobody announced is late, not lost.
#pragma once
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "engine/words.h"
#include "wire/control.h"

namespace uccl {

class Doorbell {
 public:
  explicit Doorbell(u8* control) : control_(control), heard_(rings(control).load(std::memory_order_acquire)) {}

  // The host's side, from any thread. A system call only while somebody sleeps.
  static void ring(u8* control) {
    // Both are sequentially consistent, as the sleeper's are: one of the two sees the other.
    rings(control).fetch_add(1, std::memory_order_seq_cst);
    if (sleepers(control).load(std::memory_order_seq_cst) == 0) return;
    syscall(SYS_futex, control + ControlLayout::kDoorbell, FUTEX_WAKE, 1 << 30, nullptr, nullptr, 0);
  }
  // From now on commands come that nobody announces (graphs are replayed): no long sleep any more.
  static void keep_awake(u8* control) { publish_word(control, ControlLayout::kKeepAwake, 1); }

  // The proxy's side, one Doorbell a thread. Whether it was rung since this thread last looked.
  bool heard() {
    const u32 now = rings(control_).load(std::memory_order_acquire);
    if (now == heard_) return false;
    heard_ = now;
    return true;
  }
  bool may_sleep_long() const { return read_word(control_word(control_, ControlLayout::kKeepAwake)) == 0; }
  // Sleeps for so long, or until it is rung; not at all where it was rung since heard().
  void sleep(u64 ns) {
    const timespec limit{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
    sleepers(control_).fetch_add(1, std::memory_order_seq_cst);
    syscall(SYS_futex, control_ + ControlLayout::kDoorbell, FUTEX_WAIT, heard_, &limit, nullptr, 0);
    sleepers(control_).fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
  static std::atomic_ref<u32> rings(u8* control) {
    return std::atomic_ref<u32>(*reinterpret_cast<u32*>(control + ControlLayout::kDoorbell));
  }
  static std::atomic_ref<u32> sleepers(u8* control) {
    return std::atomic_ref<u32>(*reinterpret_cast<u32*>(control + ControlLayout::kSleepers));
  }

  u8* control_;
  u32 heard_;  // rings that this thread knows of
};

}  // namespace uccl
