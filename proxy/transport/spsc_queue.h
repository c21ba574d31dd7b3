// A bounded queue between two threads: one pushes, one pops. No lock, no allocation after construction.
//
//   word   writer   pairs with
//   tail   pusher   release store / acquire load by the popper: the slot is filled before it is read
//   head   popper   release store / acquire load by the pusher: the slot was read before it is filled again
#pragma once
#include <atomic>
#include <bit>
#include <vector>

#include "wire/types.h"

namespace uccl {

template <class T>
class SpscQueue {
 public:
  explicit SpscQueue(u32 capacity) : slots_(std::bit_ceil(capacity < 1 ? 1u : capacity)), capacity_(capacity) {}

  u32 capacity() const { return capacity_; }

  bool push(const T& value) {
    const u64 tail = tail_.load(std::memory_order_relaxed);
    if (tail - cached_head_ >= capacity_) {
      cached_head_ = head_.load(std::memory_order_acquire);  // pairs with pop's release
      if (tail - cached_head_ >= capacity_) return false;
    }
    slots_[tail & (slots_.size() - 1)] = value;
    tail_.store(tail + 1, std::memory_order_release);
    return true;
  }

  bool pop(T* value) {
    const u64 head = head_.load(std::memory_order_relaxed);
    if (head == cached_tail_) {
      cached_tail_ = tail_.load(std::memory_order_acquire);  // pairs with push's release
      if (head == cached_tail_) return false;
    }
    *value = slots_[head & (slots_.size() - 1)];
    head_.store(head + 1, std::memory_order_release);
    return true;
  }

 private:
  std::vector<T> slots_;
  u32 capacity_;
  alignas(64) std::atomic<u64> tail_{0};  // the pusher's line
  u64 cached_head_ = 0;
  alignas(64) std::atomic<u64> head_{0};  // the popper's line
  u64 cached_tail_ = 0;
};

}  // namespace uccl
