// Shared words: counters, release stores and the clock.
#include <sched.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "engine/words.h"
#include "native/check.h"

using namespace uccl;

TEST(engine_words_clock_goes_forward) {
  u64 last = steady_ns();
  for (int i = 0; i < 1000; ++i) {
    const u64 now = steady_ns();
    CHECK(now >= last);
    last = now;
  }
}

TEST(engine_words_shared_adds_lose_nothing_and_wrap) {
  u64 word = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 5000; ++i) add_shared(word, 3), add_shared(word, ~0ull);  // + 3 - 1
    });
  for (auto& t : threads) t.join();
  CHECK_EQ(word, 4ull * 5000 * 2);
}

TEST(engine_words_publish_releases_what_was_written_before) {
  alignas(64) u8 control[64] = {};
  int plain = 0;
  std::thread writer([&] {
    plain = 42;
    publish_word(control, 8, 7);
  });
  while (std::atomic_ref<u64>(control_word(control, 8)).load(std::memory_order_acquire) != 7) sched_yield();
  const int seen = plain;
  writer.join();
  CHECK_EQ(seen, 42);
  u64 counter = 5;
  bump(counter);
  bump(counter, 10);
  CHECK_EQ(read_word(counter), 16ull);
}

TEST(engine_words_raise_keeps_the_highest_of_many_writers) {
  alignas(64) u8 control[64] = {};
  std::vector<std::thread> threads;
  for (u64 t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (u64 i = 0; i < 5000; ++i) raise_word(control, 16, (i * 7919 + t * 13) % 40000);
    });
  for (auto& t : threads) t.join();
  u64 highest = 0;
  for (u64 t = 0; t < 4; ++t)
    for (u64 i = 0; i < 5000; ++i) highest = std::max(highest, (i * 7919 + t * 13) % 40000);
  CHECK_EQ(read_word(control_word(control, 16)), highest);
  raise_word(control, 16, 5);
  CHECK_EQ(read_word(control_word(control, 16)), highest);
}
