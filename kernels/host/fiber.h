// A function with a stack of its own that can leave in the middle and be resumed there: how one thread carries the
// launches of many ranks (a simulation), each of which is a scheduler of lanes (runtime.h). Not for lanes themselves.
#pragma once
#include <cstddef>
#include <exception>
#include <functional>

#include "wire/types.h"

namespace uccl::simt {

// Resumed by one thread at a time. What happened before a switch is visible after it.
class Fiber {
 public:
  static constexpr u64 kStackBytes = 256u << 10;

  // Takes a stack from a pool; throws std::bad_alloc. Nothing runs before the first `resume`.
  explicit Fiber(std::function<void()> body);
  ~Fiber();  // a body that has not ended is dropped where it stands, without unwinding
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the body until it leaves or ends; then rethrows what it threw. Not from inside itself.
  void resume();
  bool ended() const { return ended_; }

  // Inside a body, and in no catch block: back to whoever resumed it.
  static void leave();

 private:
  static void main();

  std::function<void()> body_;
  u8* stack_;
  void* stack_pointer_;
  void* resumer_ = nullptr;
  const void* resumer_bottom_ = nullptr;  // its stack, as AddressSanitizer knows it
  std::size_t resumer_bytes_ = 0;
  void* tsan_fiber_;
  std::exception_ptr error_;
  bool ended_ = false;
};

}  // namespace uccl::simt
