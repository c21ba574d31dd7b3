// The fault record's compare-and-swap, its fields, and the abort word (protocol: wire/control.h).
#include "engine/faults.h"

#include "engine/words.h"

namespace uccl {

void Faults::raise(const Fault& fault) noexcept {
  auto& record = *reinterpret_cast<FaultRecord*>(control_ + ControlLayout::kFault);
  u32 unclaimed = 0;
  // Relaxed is enough to claim: readers acquire `ready`, never `claimed`.
  if (std::atomic_ref<u32>(record.claimed).compare_exchange_strong(unclaimed, 1, std::memory_order_relaxed)) {
    record.kind = static_cast<u32>(fault.kind);
    record.phase = static_cast<u32>(fault.phase);
    record.peer = fault.peer;
    record.detail = fault.detail.word;
    record.expected = fault.expected;
    record.seen = fault.seen;
    const u64 last = fault.peer < num_ranks_ ? read_word(peers_[fault.peer].last_arrival_ns) : 0;
    const u64 now = steady_ns();
    record.last_seen_ns = last != 0 && now > last ? now - last : 0;
    record.waited_ns = 0;
    std::atomic_ref<u32>(record.ready).store(1, std::memory_order_release);  // pairs with the reader of the record
  }
  publish_word(control_, ControlLayout::kAbort, 1);  // pairs with the acquire in every kernel wait
}

}  // namespace uccl
