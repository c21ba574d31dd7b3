// Words shared with other threads, processes and devices, and the clock they are stamped with. Every helper is one
// atomic access of a plain 64-bit word; counters that have a single writer need no locked instruction.
#pragma once
#include <time.h>

#include <atomic>

#include "wire/types.h"

namespace uccl {

// Points at a simulated time on the thread that sets it; null otherwise.
inline constinit thread_local const u64* simulated_ns __attribute__((tls_model("initial-exec"))) = nullptr;

// CLOCK_MONOTONIC in ns: the same clock for every process of a host. About 20 ns a call.
inline u64 steady_ns() {
  if (simulated_ns != nullptr) return *simulated_ns;
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<u64>(t.tv_sec) * 1'000'000'000ull + static_cast<u64>(t.tv_nsec);
}

inline u64 read_word(const u64& word) {
  return std::atomic_ref<u64>(const_cast<u64&>(word)).load(std::memory_order_relaxed);
}
inline void write_word(u64& word, u64 value) { std::atomic_ref<u64>(word).store(value, std::memory_order_relaxed); }

// Adds to a counter that only this thread writes: readers see whole values, no bus lock is paid.
inline void bump(u64& counter, u64 n = 1) { write_word(counter, read_word(counter) + n); }
// Adds to a counter that several threads write.
inline void add_shared(u64& counter, u64 n) { std::atomic_ref<u64>(counter).fetch_add(n, std::memory_order_relaxed); }

// Words of the control segment. The release pairs with the acquire load of the kernel that waits on the word.
inline u64& control_word(u8* control, u64 offset) { return *reinterpret_cast<u64*>(control + offset); }
inline void publish_word(u8* control, u64 offset, u64 value) {
  std::atomic_ref<u64>(control_word(control, offset)).store(value, std::memory_order_release);
}
// Forward only, for a word that several workers may raise. Release as above.
inline void raise_word(u8* control, u64 offset, u64 value) {
  std::atomic_ref<u64> word(control_word(control, offset));
  u64 current = word.load(std::memory_order_relaxed);
  while (current < value &&
         !word.compare_exchange_weak(current, value, std::memory_order_release, std::memory_order_relaxed)) {}
}

}  // namespace uccl
