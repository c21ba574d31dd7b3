// See fiber.h. Compiled like runtime.cpp: without ThreadSanitizer, which is told about every switch.
#include "kernels/host/fiber.h"

#include <utility>

#include "kernels/host/sanitizer.h"
#include "kernels/host/stack_pool.h"

namespace uccl::simt {
namespace {

constexpr u64 kKeptStacks = 512;  // 128 MiB of addresses; what was touched of it stays resident

StackPool stacks(Fiber::kStackBytes, kKeptStacks);  // made before there are threads: see runtime.cpp

thread_local Fiber* running = nullptr;

}  // namespace

Fiber::Fiber(std::function<void()> body)
    : body_(std::move(body)), stack_(stacks.take()), tsan_fiber_(tsan_take_fiber()) {
  stack_pointer_ = make_fiber(stack_ + kStackBytes - 64, main);
}

Fiber::~Fiber() {
  tsan_give_fiber(tsan_fiber_, ended_);
  stacks.give(stack_);
}

void Fiber::resume() {
  Fiber* const outer = std::exchange(running, this);
  void* const thread = tsan_current_fiber();
  tsan_release(this);  // pairs with the acquire in main and leave
  tsan_switch_to(tsan_fiber_);
  switch_stack(&resumer_, stack_pointer_, StackBounds{stack_, kStackBytes}, false);
  tsan_switch_to(thread);
  tsan_acquire(this);  // pairs with the release in main and leave
  running = outer;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Fiber::leave() {
  Fiber* const self = running;
  tsan_release(self);
  switch_stack(&self->stack_pointer_, self->resumer_, StackBounds{self->resumer_bottom_, self->resumer_bytes_}, false);
  tsan_acquire(self);
}

void Fiber::main() {
  const StackBounds from = arrive_on_new_stack();
  Fiber* const self = running;
  self->resumer_bottom_ = from.bottom;
  self->resumer_bytes_ = from.bytes;
  tsan_acquire(self);
  try {
    self->body_();
  } catch (...) { self->error_ = std::current_exception(); }
  self->ended_ = true;
  tsan_release(self);
  switch_stack(&self->stack_pointer_, self->resumer_, from, true);
  __builtin_unreachable();  // an ended fiber is not resumed
}

}  // namespace uccl::simt
