// The stack switch alone: there and back with every register that a callee must keep.
#include <vector>

#include "kernels/host/fiber_switch.h"
#include "native/check.h"

// Sanitizers follow stacks only with the announcements of kernels/host/sanitizer.h, which the runtime's tests use.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
namespace uccl::simt {
namespace {

void* main_stack;
void* fiber_stack;
u64 turns;

void fiber_main() {
  double x = 0.5;
  for (u64 a = 1, b = 2, c = 3;; a += b, b += c, c += a) {
    turns += a;
    x += static_cast<double>(b & 7);
    if (x < 0) turns = 0;
    uccl_fiber_switch(&fiber_stack, main_stack);
  }
}

}  // namespace

TEST(fiber_switch_goes_there_and_back_keeping_registers) {
  std::vector<u64> stack(8192);
  u64 misaligned = reinterpret_cast<u64>(stack.data() + stack.size()) % 16;
  fiber_stack = make_fiber(reinterpret_cast<u8*>(stack.data() + stack.size()) - misaligned, fiber_main);
  turns = 0;
  u64 expect = 0, a = 1, b = 2, c = 3;
  double y = 1;
  for (int i = 0; i < 1000; ++i) {
    expect += a;
    y *= 1.0001;
    uccl_fiber_switch(&main_stack, fiber_stack);
    CHECK_EQ(turns, expect);
    a += b, b += c, c += a;
  }
  CHECK(y > 1.1 && y < 1.11);
}

}  // namespace uccl::simt
#endif
