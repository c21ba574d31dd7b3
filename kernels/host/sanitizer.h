// What the runtime tells sanitizers about fibers; nothing in an ordinary build.
//
// ThreadSanitizer: a warp is one "thread" of its own; runtime.cpp is compiled without instrumentation and with
// UCCL_SIMT_TSAN. AddressSanitizer: every stack switch is announced, so that it knows the stack it is on.
#pragma once
#include <cstddef>

#include "kernels/host/fiber_switch.h"

#if defined(__SANITIZE_THREAD__)
#error "compile the fiber runtime without -fsanitize=thread and with -DUCCL_SIMT_TSAN (kernels/host/README.md)"
#endif
#if defined(UCCL_SIMT_TSAN)
#include <sanitizer/tsan_interface.h>

#include <mutex>
#include <vector>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace uccl::simt {

struct StackBounds {
  const void* bottom = nullptr;
  std::size_t bytes = 0;
};

#if defined(UCCL_SIMT_TSAN)
// Fibers are used again: ThreadSanitizer maps, clears and unmaps the state of one for longer than most warps run. No race
// hides behind the past of one: whoever gives it back has acquired what it did, and the lock hands that on to whoever takes
// it.
struct TsanFibers {
  std::mutex mutex;
  std::vector<void*> idle;
};
inline TsanFibers tsan_fibers;  // made before there are threads, as stacks are: see runtime.cpp

inline void* tsan_take_fiber() {
  std::lock_guard<std::mutex> lock(tsan_fibers.mutex);
  if (tsan_fibers.idle.empty()) return __tsan_create_fiber(0);
  void* const fiber = tsan_fibers.idle.back();
  tsan_fibers.idle.pop_back();
  return fiber;
}
// `ended`: every function that was called on it has returned; else its calls would stand in every later report.
inline void tsan_give_fiber(void* fiber, bool ended) {
  if (!ended) return __tsan_destroy_fiber(fiber);
  std::lock_guard<std::mutex> lock(tsan_fibers.mutex);
  tsan_fibers.idle.push_back(fiber);
}
inline void* tsan_current_fiber() { return __tsan_get_current_fiber(); }
inline void tsan_switch_to(void* fiber) { __tsan_switch_to_fiber(fiber, __tsan_switch_to_fiber_no_sync); }
inline void tsan_acquire(void* address) { __tsan_acquire(address); }
inline void tsan_release(void* address) { __tsan_release(address); }
#else
inline void* tsan_take_fiber() { return nullptr; }
inline void tsan_give_fiber(void*, bool) {}
inline void* tsan_current_fiber() { return nullptr; }
inline void tsan_switch_to(void*) {}
inline void tsan_acquire(void*) {}
inline void tsan_release(void*) {}
#endif

// Switches to `load`, whose stack is `target`. `last`: the stack being left is not returned to.
inline void switch_stack(void** save, void* load, [[maybe_unused]] StackBounds target, [[maybe_unused]] bool last) {
#if defined(__SANITIZE_ADDRESS__)
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(last ? nullptr : &fake, target.bottom, target.bytes);
  uccl_fiber_switch(save, load);
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
  uccl_fiber_switch(save, load);
#endif
}

// First thing on a new stack; returns the bounds of the stack that was switched from (only AddressSanitizer knows).
inline StackBounds arrive_on_new_stack() {
  StackBounds from;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &from.bottom, &from.bytes);
#endif
  return from;
}

}  // namespace uccl::simt
