// The proxy's end of a ring: one thread, no locks, no allocation. And what producers hold of a ring in one host segment.
#pragma once
#include <atomic>

#include "ring/layout.h"

namespace uccl {

// The view of a ring whose words all lie in one host segment.
inline RingView ring_view(void* memory, u32 capacity) {
  auto* h = static_cast<RingHeader*>(memory);
  return RingView{
      reinterpret_cast<u128*>(h + 1), &h->head, &h->cached_tail, &h->cached_done, &h->tail, &h->done, capacity, 0};
}

class RingConsumer {
 public:
  RingConsumer() = default;
  // `memory` holds ring_bytes(capacity) bytes, zeroed before the first use; `capacity` is a power of two.
  RingConsumer(void* memory, u32 capacity)
      : header_(static_cast<RingHeader*>(memory)),
        slots_(reinterpret_cast<u128*>(header_ + 1)),
        capacity_(capacity),
        next_(std::atomic_ref<u64>(header_->tail).load(std::memory_order_relaxed)) {}

  // The command of the next ticket, if it has been committed. Does not take it: call `advance` when it is handed on.
  bool peek(Command* out) const {
    u128& slot = slots_[next_ & (capacity_ - 1)];
    const u64 parity = lap_parity(next_, capacity_);
    const u64 lo = std::atomic_ref<u64>(slot.lo).load(std::memory_order_acquire);  // pairs with the producer's release
    if ((lo ^ parity) & kParityBit) return false;
    const u64 hi = std::atomic_ref<u64>(slot.hi).load(std::memory_order_acquire);
    if ((hi ^ parity) & kParityBit) return false;  // torn: the other half is still on its way
    *out = unpack(u128{lo & ~kParityBit, hi & ~kParityBit});
    return true;
  }

  u64 advance() { return next_++; }  // returns the ticket that was taken
  u64 next_ticket() const { return next_; }

  // Lets producers reuse the slots of every ticket taken so far.
  void publish_tail() { std::atomic_ref<u64>(header_->tail).store(next_, std::memory_order_release); }
  // Tells producers that commands with tickets below `done` are complete at their receivers.
  void publish_done(u64 done) { std::atomic_ref<u64>(header_->done).store(done, std::memory_order_release); }

 private:
  RingHeader* header_ = nullptr;
  u128* slots_ = nullptr;
  u32 capacity_ = 0;
  u64 next_ = 0;
};

}  // namespace uccl
