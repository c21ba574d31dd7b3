// The reading end of an event ring: a copy of what it holds, while its writer goes on or after its end.
#pragma once
#include <vector>

#include "diag/event_ring.h"

namespace uccl {

struct EventSnapshot {
  std::uint64_t first = 0;    // number of events[0] since the ring was made
  std::uint64_t written = 0;  // events ever, by the end of the copy
  bool traced = false;        // every command
  std::vector<Event> events;  // in the order in which they were recorded
};

// `ring`: memory of an EventLog, of `bytes` bytes; no alignment beyond 8 and no content is assumed, since it may be
// another process's. A ring that no worker has opened gives no events. At most capacity - 1 events: one may be under way.
EventSnapshot read_events(const std::uint8_t* ring, std::uint64_t bytes);

}  // namespace uccl
