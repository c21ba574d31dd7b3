// The shape of a ring in memory, and that zeroed memory is an empty ring.
#include <cstddef>

#include "native/check.h"
#include "proxy/ring/producer.h"
#include "proxy/ring/ring_memory.h"
#include "ring/consumer.h"
#include "ring/layout.h"

using namespace uccl;
using uccl::testing::RingMemory;

TEST(ring_layout_words_of_different_writers_share_no_line) {
  CHECK_EQ(offsetof(RingHeader, tail), 0u);
  CHECK_EQ(offsetof(RingHeader, done), 64u);
  CHECK_EQ(offsetof(RingHeader, head), 128u);
  CHECK_EQ(offsetof(RingHeader, cached_tail), 192u);
  CHECK_EQ(ring_bytes(1024), 256ull + 1024 * 16);
}

TEST(ring_layout_capacities) {
  for (u32 good : {2u, 4u, 1024u, 1u << 31}) CHECK(valid_capacity(good));
  for (u32 bad : {0u, 1u, 3u, 6u, 1023u, ~0u}) CHECK(!valid_capacity(bad));
}

TEST(ring_layout_view_points_at_its_words) {
  RingMemory memory(8);
  const RingView view = ring_view(memory.data(), 8);
  CHECK(view.slots == memory.slots());
  CHECK(reinterpret_cast<u64>(view.slots) % 16 == 0);
  CHECK(view.head == &memory.header().head && view.cached_tail == &memory.header().cached_tail);
  CHECK(view.cached_done == &memory.header().cached_done);
  CHECK(view.tail == &memory.header().tail && view.done == &memory.header().done);
  CHECK_EQ(view.capacity, 8u);
}

TEST(ring_layout_prepared_memory_is_an_empty_ring) {
  for (const u64 start : {0ull, 1ull, 7ull, 8ull, 13ull, (1ull << 32) - 3, 1ull << 40}) {
    RingMemory memory(8, start);
    RingConsumer consumer(memory.data(), 8);
    Command c;
    CHECK_EQ(consumer.next_ticket(), start);
    CHECK(!consumer.peek(&c));
    u64 ticket = 0;
    const Command sent{Op::kWrite, 3, 5, 16, 32, 48};
    CHECK(ring_push(ring_view(memory.data(), 8), {&sent, 1}, &ticket, [] { return false; }));
    CHECK_EQ(ticket, start);
    CHECK(consumer.peek(&c));
    CHECK_EQ(c.key, 5u);
    consumer.advance();
    CHECK(!consumer.peek(&c));
  }
}
