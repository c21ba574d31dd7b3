// Announced stack switches: what AddressSanitizer is told must let it follow a fiber, its stack frames and its end.
// Under ThreadSanitizer the header is for the uninstrumented runtime only; there every launch of any test is the test.
#if !defined(__SANITIZE_THREAD__)
#include <cstring>
#include <vector>

#include "kernels/host/sanitizer.h"
#include "native/check.h"

namespace uccl::simt {
namespace {

struct Fiber {
  void* main_stack = nullptr;
  void* fiber_stack = nullptr;
  StackBounds main_bounds;
  u64 sum = 0;
} fiber;

// A frame with an array: AddressSanitizer poisons around it on the fiber's own stack.
__attribute__((noinline)) u64 use_frame(u64 n) {
  volatile char local[600];
  for (u64 i = 0; i < sizeof local; ++i) local[i] = static_cast<char>(i * n);
  return static_cast<u64>(local[n % sizeof local] & 0xff);
}

void fiber_main() {
  fiber.main_bounds = arrive_on_new_stack();
  for (u64 i = 1; i <= 20; ++i) {
    fiber.sum += use_frame(i);
    switch_stack(&fiber.fiber_stack, fiber.main_stack, fiber.main_bounds, i == 20);
  }
}

}  // namespace

TEST(sanitizer_follows_a_fiber_to_its_end) {
  alignas(16) static u8 stack[64 << 10];
  fiber = Fiber{};
  fiber.fiber_stack = make_fiber(stack + sizeof stack, fiber_main);
  u64 expect = 0;
  for (u64 i = 1; i <= 20; ++i) {
    switch_stack(&fiber.main_stack, fiber.fiber_stack, StackBounds{stack, sizeof stack}, false);
    expect += use_frame(i);
    CHECK_EQ(fiber.sum, expect);
  }
  tsan_acquire(&fiber);  // nothing in this build
  CHECK(tsan_current_fiber() == nullptr);
}

}  // namespace uccl::simt
#endif
