// Copying a ring that is being written: copy, look at the count again, keep what cannot have been touched.
#include "diag/event_reader.h"

#include <algorithm>

namespace uccl {
namespace {

std::uint64_t load(const std::uint64_t& word, std::memory_order order = std::memory_order_acquire) {
  return std::atomic_ref<std::uint64_t>(const_cast<std::uint64_t&>(word)).load(order);
}

}  // namespace

EventSnapshot read_events(const std::uint8_t* ring, std::uint64_t bytes) {
  EventSnapshot snapshot;
  if (bytes < sizeof(EventRingHeader)) return snapshot;
  const auto* header = reinterpret_cast<const EventRingHeader*>(ring);
  if (load(header->magic) != EventRingHeader::kMagic) return snapshot;  // pairs with EventLog's constructor
  const std::uint64_t capacity = load(header->capacity, std::memory_order_relaxed);
  const std::uint64_t room = (bytes - sizeof(EventRingHeader)) / sizeof(Event);
  if (!std::has_single_bit(capacity) || capacity > room) return snapshot;
  snapshot.traced = load(header->traced, std::memory_order_relaxed) != 0;

  const std::uint64_t before = load(header->written);  // pairs with record(): events below are whole
  const std::uint64_t oldest = before > capacity ? before - capacity : 0;
  const auto* words = reinterpret_cast<const std::uint64_t*>(header + 1);
  snapshot.events.reserve(before - oldest);
  for (std::uint64_t n = oldest; n < before; ++n) {
    std::array<std::uint64_t, sizeof(Event) / sizeof(std::uint64_t)> copy;
    // Acquire, pairs with record()'s release: a word of a newer event makes the count below at least that event's.
    for (std::uint64_t i = 0; i < copy.size(); ++i) copy[i] = load(words[(n & (capacity - 1)) * copy.size() + i]);
    snapshot.events.push_back(std::bit_cast<Event>(copy));
  }
  const std::uint64_t after = load(header->written);
  snapshot.written = after;
  // Event `after` may be half written, over event after - capacity.
  const std::uint64_t whole = after >= capacity ? after - capacity + 1 : 0;
  const std::uint64_t dropped = std::min(before, std::max(oldest, whole)) - oldest;
  snapshot.events.erase(snapshot.events.begin(), snapshot.events.begin() + static_cast<std::ptrdiff_t>(dropped));
  snapshot.first = oldest + dropped;
  return snapshot;
}

}  // namespace uccl
