// The queue between two threads: order, capacity to the element, wraps.
#include <sched.h>

#include <thread>

#include "native/check.h"
#include "transport/spsc_queue.h"

using namespace uccl;

TEST(transport_spsc_queue_takes_exactly_its_capacity) {
  for (const u32 capacity : {1u, 2u, 3u, 5u, 64u, 100u}) {
    SpscQueue<u64> q(capacity);
    u64 value = 0, in = 0, out = 0;
    CHECK(!q.pop(&value));
    for (int lap = 0; lap < 5; ++lap) {
      for (u32 i = 0; i < capacity; ++i) CHECK(q.push(in++));
      CHECK(!q.push(0));
      for (u32 i = 0; i < capacity; ++i) {
        CHECK(q.pop(&value));
        CHECK_EQ(value, out++);
      }
      CHECK(!q.pop(&value));
    }
  }
}

TEST(transport_spsc_queue_keeps_order_between_threads) {
  struct Pair {
    u64 a, b;
  };
  SpscQueue<Pair> q(7);
  constexpr u64 kCount = 200000;
  std::thread pusher([&] {
    for (u64 i = 0; i < kCount;) {
      if (q.push(Pair{i, ~i}))
        ++i;
      else
        sched_yield();
    }
  });
  u64 wrong = 0;
  for (u64 i = 0; i < kCount;) {
    Pair p{};
    if (!q.pop(&p)) {
      sched_yield();
      continue;
    }
    wrong += p.a != i || p.b != ~i;
    ++i;
  }
  pusher.join();
  CHECK_EQ(wrong, 0u);
}
