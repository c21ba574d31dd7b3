// The memory of a ring for tests, as if `start` tickets had already gone through it.
#pragma once
#include <cstdlib>
#include <cstring>
#include <memory>

#include "ring/layout.h"

namespace uccl::testing {

// Words and slots as they are when every ticket below `start` was pushed, taken and completed.
inline void prepare_ring(void* memory, u32 capacity, u64 start) {
  std::memset(memory, 0, ring_bytes(capacity));
  auto* header = static_cast<RingHeader*>(memory);
  auto* slots = reinterpret_cast<u128*>(header + 1);
  header->head = header->tail = header->done = header->cached_tail = start;
  for (u64 ticket = start; ticket < start + capacity; ++ticket) {
    const u64 old = lap_parity(ticket, capacity) ^ kParityBit;  // what the lap before left there
    slots[ticket % capacity] = u128{old, old};
  }
}

class RingMemory {
 public:
  explicit RingMemory(u32 ring_capacity, u64 start = 0)
      : capacity(ring_capacity), memory_(std::aligned_alloc(64, align_up(ring_bytes(ring_capacity), 64)), &std::free) {
    prepare_ring(memory_.get(), capacity, start);
  }
  void* data() const { return memory_.get(); }
  RingHeader& header() const { return *static_cast<RingHeader*>(memory_.get()); }
  u128* slots() const { return reinterpret_cast<u128*>(&header() + 1); }

  const u32 capacity;

 private:
  std::unique_ptr<void, void (*)(void*)> memory_;
};

}  // namespace uccl::testing
