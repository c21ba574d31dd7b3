// The consumer's end: torn reads, tickets across laps, tail and done as others see them.
#include <sched.h>

#include <atomic>
#include <random>
#include <thread>

#include "native/check.h"
#include "proxy/ring/producer.h"
#include "proxy/ring/ring_memory.h"
#include "ring/consumer.h"

using namespace uccl;
using uccl::testing::RingMemory;

namespace {

bool never() { return false; }

}  // namespace

TEST(ring_consumer_sees_no_command_until_both_words_are_written) {
  for (const u64 start : {0ull, 8ull, 3ull, 15ull, (1ull << 32) - 1}) {
    for (const bool lo_first : {false, true}) {
      RingMemory memory(8, start);
      RingConsumer consumer(memory.data(), 8);
      const Command sent{Op::kSequence, kMaxRanks - 1, 0x1ffff, kMaxRegionBytes - 16, kMaxRegionBytes - 16, 4096};
      const u128 w = pack(sent, lap_parity(start, 8));
      u128& slot = memory.slots()[start % 8];
      Command c;
      CHECK(!consumer.peek(&c));
      (lo_first ? slot.lo : slot.hi) = lo_first ? w.lo : w.hi;
      CHECK(!consumer.peek(&c));
      (lo_first ? slot.hi : slot.lo) = lo_first ? w.hi : w.lo;
      CHECK(consumer.peek(&c));
      CHECK(c.op == Op::kSequence && c.peer == sent.peer && c.key == sent.key && c.bytes == sent.bytes);
      CHECK(c.local_offset == sent.local_offset && c.remote_offset == sent.remote_offset);
    }
  }
}

TEST(ring_consumer_peek_takes_nothing) {
  RingMemory memory(4);
  RingConsumer consumer(memory.data(), 4);
  const Command sent{Op::kCredit, 1, 2, 0, 0, 0};
  CHECK(ring_push(ring_view(memory.data(), 4), {&sent, 1}, nullptr, never));
  Command c;
  for (int i = 0; i < 3; ++i) CHECK(consumer.peek(&c));
  CHECK_EQ(memory.header().tail, 0ull);
  CHECK_EQ(consumer.advance(), 0ull);
  CHECK_EQ(memory.header().tail, 0ull);  // not before it is published
  consumer.publish_tail();
  CHECK_EQ(memory.header().tail, 1ull);
  CHECK_EQ(memory.header().done, 0ull);
  consumer.publish_done(1);
  CHECK_EQ(memory.header().done, 1ull);
}

TEST(ring_consumer_a_taken_slot_is_not_seen_again) {
  RingMemory memory(2, 5);
  RingConsumer consumer(memory.data(), 2);
  const RingView view = ring_view(memory.data(), 2);
  std::mt19937 random(9);
  Command c;
  for (u64 pushed = 5, taken = 5; taken < 500;) {
    if (pushed - taken < 2 && random() % 2) {
      const Command sent{Op::kWrite, 0, static_cast<u32>(pushed), 0, 0, 0};
      u64 ticket;
      CHECK(ring_push(view, {&sent, 1}, &ticket, never));
      CHECK_EQ(ticket, pushed++);
    } else {
      CHECK_EQ(consumer.peek(&c), pushed != taken);
      if (pushed == taken) continue;
      CHECK_EQ(u64{c.key}, taken);
      CHECK_EQ(consumer.advance(), taken++);
      consumer.publish_tail();
    }
  }
}

TEST(ring_consumer_goes_on_from_the_tail) {
  RingMemory memory(16, 1000);
  const RingView view = ring_view(memory.data(), 16);
  for (u32 n = 0; n < 5; ++n) {
    const Command sent{Op::kWrite, 0, n, 0, 0, 0};
    CHECK(ring_push(view, {&sent, 1}, nullptr, never));
  }
  Command c;
  RingConsumer first(memory.data(), 16);
  for (u64 ticket = 1000; ticket < 1002; ++ticket) {
    CHECK(first.peek(&c));
    CHECK_EQ(first.advance(), ticket);
  }
  first.publish_tail();
  RingConsumer second(memory.data(), 16);  // a proxy that took over
  CHECK_EQ(second.next_ticket(), 1002ull);
  CHECK(second.peek(&c));
  CHECK_EQ(c.key, 2u);
}

TEST(ring_consumer_done_releases_what_was_done_before) {
  // The consumer writes a plain word before it publishes `done`; whoever acquires `done` may read it (ThreadSanitizer
  // proves the edge), ticket by ticket.
  RingMemory memory(4);
  const RingView view = ring_view(memory.data(), 4);
  u64 plain[2000] = {};
  std::atomic<bool> failed{false};
  std::thread proxy([&] {
    RingConsumer consumer(memory.data(), 4);
    Command c;
    while (consumer.next_ticket() < 2000) {
      if (!consumer.peek(&c)) {
        sched_yield();
        continue;
      }
      const u64 ticket = consumer.advance();
      consumer.publish_tail();
      plain[ticket] = ticket + 1;
      consumer.publish_done(ticket + 1);
    }
  });
  for (u64 n = 0; n < 2000; ++n) {
    const Command sent{Op::kQuiet, 0, 0, 0, 0, 0};
    u64 ticket;
    ring_push(view, {&sent, 1}, &ticket, [] { return sched_yield() == 0; });
    while (std::atomic_ref<u64>(memory.header().done).load(std::memory_order_acquire) <= ticket) sched_yield();
    if (plain[ticket] != ticket + 1) failed = true;
  }
  proxy.join();
  CHECK(!failed);
}
