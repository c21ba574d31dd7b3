// Reading: every event that is handed out is whole and in its place, while the writer goes on; rubbish gives nothing.
#include <atomic>
#include <thread>

#include "diag/event_reader.h"
#include "native/check.h"
#include "proxy/diag/event_memory.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

// Empty when all is right.
std::string problem(const EventSnapshot& s, std::uint64_t capacity) {
  if (s.events.size() > capacity) return "more events than the ring holds";
  if (s.first + s.events.size() > s.written) return "events that were not written";
  for (std::uint64_t i = 0; i < s.events.size(); ++i)
    if (!is_numbered(s.events[i], s.first + i)) return "event " + std::to_string(s.first + i) + " is torn or misplaced";
  return "";
}

}  // namespace

TEST(diag_event_reader_returns_what_was_recorded) {
  std::mt19937 random(20);
  for (const std::uint32_t capacity : {1u, 2u, 8u, 64u})
    for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{capacity} - 1,
                                      std::uint64_t{capacity}, std::uint64_t{random() % 1000}}) {
      EventMemory memory(capacity);
      EventLog log(memory.ring(), capacity, count % 2 == 1);
      for (std::uint64_t n = 0; n < count; ++n) log.record(numbered(n));
      const EventSnapshot s = read_events(memory.ring(), memory.bytes);
      CHECK_EQ(problem(s, capacity), "");
      CHECK_EQ(s.written, count);
      CHECK_EQ(s.traced, count % 2 == 1);
      CHECK_EQ(s.events.size(), std::min<std::uint64_t>(count, capacity - 1));  // one may always be under way
      CHECK_EQ(s.first + s.events.size(), count);
    }
}

TEST(diag_event_reader_takes_nothing_from_rubbish) {
  EventMemory memory(8);
  CHECK(read_events(memory.ring(), memory.bytes).events.empty());  // no worker has opened it
  EventLog log(memory.ring(), 8, false);
  for (std::uint64_t n = 0; n < 20; ++n) log.record(numbered(n));
  CHECK(read_events(memory.ring(), 8).events.empty());
  CHECK(read_events(memory.ring(), memory.bytes - 1).events.empty());  // smaller than it says
  for (const std::uint64_t capacity : {std::uint64_t{0}, std::uint64_t{7}, std::uint64_t{16}, ~std::uint64_t{0}}) {
    memory.header().capacity = capacity;
    CHECK(read_events(memory.ring(), memory.bytes).events.empty());
  }
  memory.header().capacity = 8;
  memory.header().written = ~std::uint64_t{0};  // a count that no worker reaches
  CHECK(read_events(memory.ring(), memory.bytes).events.size() < 8);
}

TEST(diag_event_reader_drops_what_is_overwritten_meanwhile) {
  constexpr std::uint32_t kCapacity = 16;
  constexpr std::uint64_t kEvents = 200'000;
  EventMemory memory(kCapacity);
  std::atomic<bool> ended{false};
  std::thread writer([&] {
    EventLog log(memory.ring(), kCapacity, false);
    for (std::uint64_t n = 0; n < kEvents; ++n) {
      log.record(numbered(n));
      if (n % 64 == 0) std::this_thread::yield();
    }
    ended.store(true, std::memory_order_release);
  });
  std::string found;
  std::uint64_t last = 0, reads = 0;
  for (bool over = false; !over && found.empty();) {
    over = ended.load(std::memory_order_acquire);
    const EventSnapshot s = read_events(memory.ring(), memory.bytes);
    found = problem(s, kCapacity);
    if (s.written < last) found = "the count went back";
    last = s.written;
    ++reads;
  }
  writer.join();
  CHECK_EQ(found, "");
  CHECK(reads > 0);
  CHECK_EQ(last, kEvents);
}
