// A host thread's end of a ring: for tests, benchmarks and host-side commands. Kernels push with
// kernels/device/ring_push.h, which follows the same protocol (layout.h) in the same order.
#pragma once
#include <atomic>
#include <span>

#include "ring/layout.h"

namespace uccl {

// The view of a ring whose words all lie in one host segment.
inline RingView ring_view(void* memory, u32 capacity) {
  auto* h = static_cast<RingHeader*>(memory);
  return RingView{reinterpret_cast<u128*>(h + 1), &h->head, &h->cached_tail, &h->tail, &h->done, capacity, 0};
}

// True when ticket may be written. Reads the consumer's tail only when the cached one says "full".
inline bool ring_has_room(const RingView& r, u64 ticket) {
  std::atomic_ref<u64> cached(*r.cached_tail);
  if (ticket - cached.load(std::memory_order_relaxed) < r.capacity) return true;
  const u64 tail = std::atomic_ref<u64>(*const_cast<u64*>(r.tail)).load(std::memory_order_acquire);
  cached.store(tail, std::memory_order_relaxed);
  return ticket - tail < r.capacity;
}

inline void ring_commit(const RingView& r, u64 ticket, const Command& c) {
  const u128 w = pack(c, lap_parity(ticket, r.capacity));
  u128& slot = r.slots[ticket & (r.capacity - 1)];
  std::atomic_ref<u64>(slot.hi).store(w.hi, std::memory_order_release);
  std::atomic_ref<u64>(slot.lo).store(w.lo, std::memory_order_release);
}

// Reserves tickets for all of `commands` at once, then stores each as its slot frees. `wait()` is called while the ring
// is full and returns false to give up; a false result leaves the reserved tickets unwritten, so the ring is dead.
template <class Wait>
bool ring_push(const RingView& r, std::span<const Command> commands, u64* first_ticket, Wait&& wait) {
  const u64 first = std::atomic_ref<u64>(*r.head).fetch_add(commands.size(), std::memory_order_relaxed);
  if (first_ticket) *first_ticket = first;
  for (u64 i = 0; i < commands.size(); ++i) {
    while (!ring_has_room(r, first + i))
      if (!wait()) return false;
    ring_commit(r, first + i, commands[i]);
  }
  return true;
}

}  // namespace uccl
