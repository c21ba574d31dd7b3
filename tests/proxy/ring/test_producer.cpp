// The producers' end: room, reservation in groups, giving up, the cached tail, and other processes as producers.
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <thread>
#include <vector>

#include "native/check.h"
#include "proxy/ring/producer.h"
#include "proxy/ring/ring_memory.h"
#include "ring/consumer.h"

using namespace uccl;
using uccl::testing::prepare_ring;
using uccl::testing::RingMemory;

namespace {

bool never() { return false; }
bool yield() {
  sched_yield();
  return true;
}

// Producer p's n-th command: both numbers survive the trip, and so does a checksum over the other fields.
Command numbered(u32 producer, u64 n) {
  return {Op::kWrite,
          producer,
          static_cast<u32>(n & low_bits(kKeyBits)),
          (n * 16) % kMaxRegionBytes,
          (n * 48) % kMaxRegionBytes,
          (n % 1000) * 16};
}
bool is_numbered(const Command& c, u32 producer, u64 n) {
  const Command want = numbered(producer, n);
  return c.op == want.op && c.peer == want.peer && c.key == want.key && c.local_offset == want.local_offset &&
         c.remote_offset == want.remote_offset && c.bytes == want.bytes;
}

// Takes `total` commands; true when each producer's came whole and in its own order.
bool consume_in_order(RingConsumer& consumer, u32 producers, u64 total) {
  std::vector<u64> next(producers, 0);
  bool good = true;
  Command c;
  for (u64 taken = 0; taken < total;) {
    if (!consumer.peek(&c)) {
      consumer.publish_tail();
      sched_yield();
      continue;
    }
    good = good && c.peer < producers && is_numbered(c, c.peer, next[c.peer]);
    if (c.peer < producers) ++next[c.peer];
    consumer.advance();
    if (++taken % 3 == 0) consumer.publish_tail();
  }
  consumer.publish_tail();
  return good;
}

bool produce(const RingView& view, u32 producer, u64 total, u32 seed) {
  std::mt19937 random(seed);
  std::vector<Command> group;
  for (u64 n = 0; n < total;) {
    group.clear();
    const u64 width = std::min<u64>(1 + random() % 11, total - n);
    for (u64 i = 0; i < width; ++i) group.push_back(numbered(producer, n + i));
    if (!ring_push(view, group, nullptr, yield)) return false;
    n += width;
  }
  return true;
}

void many_to_one(u32 producers, u32 capacity, u64 each, u64 start) {
  RingMemory memory(capacity, start);
  const RingView view = ring_view(memory.data(), capacity);
  RingConsumer consumer(memory.data(), capacity);
  std::vector<std::thread> threads;
  for (u32 p = 0; p < producers; ++p) threads.emplace_back([&, p] { produce(view, p, each, p + 1); });
  const bool good = consume_in_order(consumer, producers, producers * each);
  for (std::thread& t : threads) t.join();
  CHECK(good);
  CHECK_EQ(memory.header().head, start + producers * each);
  CHECK_EQ(memory.header().tail, start + producers * each);
}

}  // namespace

TEST(ring_producer_many_to_one_keeps_each_order) {
  many_to_one(1, 2, 4000, 0);
  many_to_one(3, 8, 4000, 0);      // groups wider than the ring
  many_to_one(7, 64, 4000, 0);
  many_to_one(4, 1024, 10000, 0);
}

TEST(ring_producer_many_to_one_past_two_to_the_32) {
  many_to_one(3, 16, 3000, (1ull << 32) - 77);
  many_to_one(2, 2, 1000, (1ull << 32) - 501);
}

TEST(ring_producer_full_ring_gives_up) {
  RingMemory memory(4);
  const RingView view = ring_view(memory.data(), 4);
  std::vector<Command> six;
  for (u64 n = 0; n < 6; ++n) six.push_back(numbered(1, n));
  u64 ticket = 99;
  int waits = 0;
  CHECK(!ring_push(view, six, &ticket, [&] { return ++waits < 5; }));
  CHECK_EQ(waits, 5);
  CHECK_EQ(ticket, 0ull);
  CHECK_EQ(memory.header().head, 6ull);  // reserved all the same: the ring is dead
  RingConsumer consumer(memory.data(), 4);
  Command c;
  for (u64 n = 0; n < 4; ++n) {
    CHECK(consumer.peek(&c) && is_numbered(c, 1, n));
    consumer.advance();
  }
  CHECK(!consumer.peek(&c));  // what was not written never looks like a command
}

TEST(ring_producer_full_ring_goes_on_when_the_tail_moves) {
  RingMemory memory(4);
  const RingView view = ring_view(memory.data(), 4);
  RingConsumer consumer(memory.data(), 4);
  std::vector<Command> nine;
  for (u64 n = 0; n < 9; ++n) nine.push_back(numbered(2, n));
  u64 seen = 0;
  bool good = true;
  CHECK(ring_push(view, nine, nullptr, [&] {  // the same thread frees one slot each time it is asked to wait
    Command c;
    good = good && consumer.peek(&c) && is_numbered(c, 2, seen++);
    consumer.advance();
    consumer.publish_tail();
    return good;
  }));
  CHECK(good);
  CHECK_EQ(seen, 5ull);
}

TEST(ring_producer_an_empty_group_takes_nothing) {
  RingMemory memory(4);
  u64 ticket = 7;
  CHECK(ring_push(ring_view(memory.data(), 4), {}, &ticket, never));
  CHECK_EQ(ticket, 0ull);
  CHECK_EQ(memory.header().head, 0ull);
}

TEST(ring_producer_reads_the_tail_only_when_the_cached_one_says_full) {
  RingMemory memory(8);
  const RingView view = ring_view(memory.data(), 8);
  RingConsumer consumer(memory.data(), 8);
  const Command one = numbered(0, 0);
  u64 tail_reads = 0, cached = 0;
  for (u64 n = 0; n < 80; ++n) {
    CHECK(ring_push(view, {&one, 1}, nullptr, never));
    if (memory.header().cached_tail != cached) ++tail_reads, cached = memory.header().cached_tail;
    Command c;
    CHECK(consumer.peek(&c));
    consumer.advance();
    consumer.publish_tail();
  }
  CHECK_EQ(tail_reads, 80ull / 8 - 1);  // once a lap, and never in the first
}

TEST(ring_producer_stale_cached_tail_only_costs_a_read) {
  RingMemory memory(8);
  const RingView view = ring_view(memory.data(), 8);
  memory.header().tail = 20;
  for (const u64 stale : {0ull, 3ull, 12ull, 19ull}) {
    memory.header().cached_tail = stale;
    CHECK(ring_room(view, 27));
    CHECK_EQ(memory.header().cached_tail, stale + 8 > 27 ? stale : 20ull);
    memory.header().cached_tail = stale;
    CHECK(!ring_room(view, 28));
    CHECK_EQ(memory.header().cached_tail, 20ull);
  }
}

TEST(ring_producer_in_another_process) {
  constexpr u32 kCapacity = 32, kProcesses = 3;
  constexpr u64 kEach = 3000;
  void* shared = mmap(nullptr, ring_bytes(kCapacity), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(shared != MAP_FAILED);
  prepare_ring(shared, kCapacity, (1ull << 32) - 1000);
  std::vector<pid_t> children;
  for (u32 p = 0; p < kProcesses; ++p) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(50);
      _exit(produce(ring_view(shared, kCapacity), p, kEach, p + 40) ? 0 : 1);
    }
    children.push_back(child);
  }
  RingConsumer consumer(shared, kCapacity);
  const bool good = consume_in_order(consumer, kProcesses, kProcesses * kEach);
  bool ended_well = true;
  for (const pid_t child : children) {
    int status = 1;
    waitpid(child, &status, 0);
    ended_well = ended_well && status == 0;
  }
  munmap(shared, ring_bytes(kCapacity));
  CHECK(good);
  CHECK(ended_well);
}
