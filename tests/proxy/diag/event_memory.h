// Memory of one event ring for tests, and events that carry their number in every field.
#pragma once
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>

#include "diag/event_ring.h"

namespace uccl::testing {

class EventMemory {
 public:
  explicit EventMemory(std::uint32_t capacity)
      : bytes(event_ring_bytes(capacity)),
        memory_(static_cast<std::uint8_t*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)), &std::free) {
    std::memset(memory_.get(), 0, bytes);
  }
  std::uint8_t* ring() const { return memory_.get(); }
  EventRingHeader& header() const { return *reinterpret_cast<EventRingHeader*>(ring()); }
  Event event(std::uint64_t place) const {  // of a ring that nobody writes
    Event e;
    std::memcpy(&e, ring() + sizeof(EventRingHeader) + place * sizeof(Event), sizeof e);
    return e;
  }

  const std::uint64_t bytes;

 private:
  std::unique_ptr<std::uint8_t, void (*)(void*)> memory_;
};

inline Event numbered(std::uint64_t n) {
  return Event{n, EventKind::kArrival, static_cast<std::uint32_t>(n * 7), ~n, n * 3};
}
inline bool is_numbered(const Event& e, std::uint64_t n) {
  const Event wanted = numbered(n);
  return std::memcmp(&e, &wanted, sizeof e) == 0;
}

}  // namespace uccl::testing
