// Recording: where events lie, what a ring keeps, what a log without a ring does, and that nothing is allocated.
#include <cstring>
#include <memory>

#include "diag/event_ring.h"
#include "native/check.h"
#include "proxy/diag/event_memory.h"
#include "proxy/engine/count_allocations.h"

using namespace uccl;
using namespace uccl::testing;

TEST(diag_event_ring_layout_is_what_other_processes_read) {
  EventMemory memory(8);
  EventLog log(memory.ring(), 8, true);
  log.record(Event{11, EventKind::kPublished, 3, 0x1122334455667788ull, ~0ull});
  std::uint64_t words[8];
  std::memcpy(words, memory.ring() + 64, sizeof words);
  CHECK_EQ(words[0], 11u);
  CHECK_EQ(words[1], std::uint64_t{3} << 32 | 5);
  CHECK_EQ(words[2], 0x1122334455667788ull);
  CHECK_EQ(words[3], ~0ull);
  CHECK_EQ(words[4], 0u);  // the second event's place is untouched
  CHECK_EQ(memory.header().written, 1u);
  CHECK_EQ(memory.header().capacity, 8u);
  CHECK_EQ(memory.header().traced, 1u);
}

TEST(diag_event_ring_overwrites_the_oldest) {
  EventMemory memory(4);
  EventLog log(memory.ring(), 4, false);
  for (std::uint64_t n = 0; n < 11; ++n) log.record(numbered(n));
  CHECK_EQ(memory.header().written, 11u);
  for (std::uint64_t n = 7; n < 11; ++n) CHECK(is_numbered(memory.event(n % 4), n));
}

TEST(diag_event_ring_goes_on_where_the_last_writer_ended) {
  EventMemory memory(4);
  EventLog(memory.ring(), 4, false).record(numbered(0));
  EventLog second(memory.ring(), 4, true);
  EventLog copy = second;
  copy.record(numbered(1));
  second.record(numbered(2));
  CHECK_EQ(memory.header().written, 3u);
  for (std::uint64_t n = 0; n < 3; ++n) CHECK(is_numbered(memory.event(n), n));
}

TEST(diag_event_ring_without_memory_records_nothing) {
  EventLog none;
  none.record(numbered(1));
  CHECK(!none.enabled());
  CHECK(!none.traced());
}

TEST(diag_event_ring_record_allocates_nothing) {
  EventMemory memory(64);
  EventLog log(memory.ring(), 64, true);
  const unsigned long long before = num_allocations();
  for (std::uint64_t n = 0; n < 1000; ++n) log.record(numbered(n));
  CHECK_EQ(num_allocations(), before);
}
