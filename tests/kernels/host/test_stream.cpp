// The CPU stream: order, events between streams, errors, and an end that runs what is queued.
#include <atomic>
#include <cfenv>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "kernels/host/stream.h"
#include "native/check.h"

namespace uccl::simt {
namespace {

constexpr u64 kSecond = 1'000'000'000;

// A function that waits until the test opens it.
struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false;
  void wait() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [this] { return open; });
  }
  void release() {
    std::lock_guard<std::mutex> lock(mutex);
    open = true;
    changed.notify_all();
  }
};

}  // namespace

TEST(stream_runs_in_order) {
  Stream stream;
  std::vector<u32> order;
  for (u32 i = 0; i < 1000; ++i) stream.enqueue([&, i] { order.push_back(i); });
  stream.synchronize();
  CHECK_EQ(order.size(), 1000u);
  for (u32 i = 0; i < 1000; ++i) CHECK_EQ(order[i], i);
}

TEST(stream_event_happens_after_what_was_queued_before_it) {
  Gate gate;
  Stream stream;
  u32 value = 0;
  stream.enqueue([&] { gate.wait(); });
  stream.enqueue([&] { value = 7; });
  const Event event = stream.record();
  CHECK(!event.query());
  CHECK(!event.wait(kSecond / 100));
  gate.release();
  CHECK(event.wait(30 * kSecond));
  CHECK(event.query());
  CHECK_EQ(value, 7u);
  CHECK(Event().query());
  CHECK(Event().wait(0));
}

TEST(stream_waits_for_an_event_of_another) {
  for (u32 round = 0; round < 50; ++round) {
    Stream a, b;
    Gate gate;
    std::vector<u32> order;  // written by both threads, ordered by the events alone
    a.enqueue([&] { gate.wait(); });
    a.enqueue([&] { order.push_back(1); });
    b.wait(a.record());
    b.enqueue([&] { order.push_back(2); });
    a.wait(b.record());
    a.enqueue([&] { order.push_back(3); });
    gate.release();
    a.synchronize();
    CHECK((order == std::vector<u32>{1, 2, 3}));
  }
}

TEST(stream_keeps_an_error_skips_what_follows_and_gives_it_once) {
  Stream stream;
  u32 ran = 0;
  stream.enqueue([] { throw std::runtime_error("first"); });
  stream.enqueue([&] { ++ran; });
  stream.enqueue([] { throw std::logic_error("second"); });
  const Event event = stream.record();
  CHECK_THROWS(std::runtime_error, event.wait(30 * kSecond));
  CHECK(event.query());
  CHECK_THROWS(std::runtime_error, stream.synchronize());
  CHECK_EQ(ran, 0u);
  stream.synchronize();  // claimed: the stream works again
  stream.enqueue([&] { ++ran; });
  stream.synchronize();
  CHECK_EQ(ran, 1u);
  CHECK_THROWS(std::runtime_error, event.wait(0));  // what happened before the event does not change
}

TEST(stream_error_reaches_the_streams_that_wait_for_it) {
  Stream a, b;
  u32 ran = 0;
  a.enqueue([] { throw std::runtime_error("in a"); });
  b.wait(a.record());
  b.enqueue([&] { ++ran; });
  CHECK_THROWS(std::runtime_error, b.synchronize());
  CHECK_EQ(ran, 0u);
  CHECK_THROWS(std::runtime_error, a.synchronize());
}

TEST(stream_end_runs_what_is_queued) {
  std::atomic<u32> ran{0};
  {
    Stream stream;
    for (u32 i = 0; i < 100; ++i) stream.enqueue([&] { ++ran; });
  }
  CHECK_EQ(ran.load(), 100u);
}

TEST(stream_takes_work_from_many_threads_and_from_itself) {
  Stream stream;
  u32 ran = 0;  // one function runs at a time, on whatever thread
  std::vector<std::thread> threads;
  for (u32 t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (u32 i = 0; i < 200; ++i) stream.enqueue([&] { ++ran; });
      stream.synchronize();
    });
  for (std::thread& t : threads) t.join();
  stream.enqueue([&] { stream.enqueue([&] { ++ran; }); });
  stream.synchronize();
  stream.synchronize();
  CHECK_EQ(ran, 801u);
}

TEST(stream_deferred_begins_when_somebody_asks_for_the_end) {
  Stream stream(true);
  std::atomic<u32> ran{0};
  std::thread::id where[3];
  stream.enqueue([&] { where[0] = std::this_thread::get_id(), ++ran; });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK_EQ(ran.load(), 0u);
  stream.finish();  // the caller runs it
  CHECK_EQ(ran.load(), 1u);
  CHECK(where[0] == std::this_thread::get_id());
  stream.enqueue([&] { where[1] = std::this_thread::get_id(), ++ran; });
  CHECK(stream.record().wait(30 * kSecond));  // its own thread
  CHECK_EQ(ran.load(), 2u);
  CHECK(where[1] != std::this_thread::get_id());
  stream.enqueue([&] { where[2] = std::this_thread::get_id(), ++ran; });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK_EQ(ran.load(), 2u);  // what was asked for before has ended
  stream.synchronize();
  CHECK(where[2] == std::this_thread::get_id());
}

// The event has happened before the stream's thread has ended its item, so what is queued next meets that thread at work.
TEST(stream_deferred_leaves_what_follows_an_event_to_the_caller) {
  Stream stream(true);
  for (u32 round = 0; round < 5000; ++round) {
    CHECK(stream.record().wait(30 * kSecond));
    std::thread::id where;
    stream.enqueue([&] { where = std::this_thread::get_id(); });
    stream.finish();
    CHECK(where == std::this_thread::get_id());
  }
}

TEST(stream_deferred_end_runs_what_is_queued) {
  std::atomic<u32> ran{0};
  {
    Stream stream(true);
    for (u32 i = 0; i < 100; ++i) stream.enqueue([&] { ++ran; });
  }
  CHECK_EQ(ran.load(), 100u);
}

TEST(stream_finish_waits_for_what_its_thread_runs_and_runs_the_rest_in_order) {
  for (u32 round = 0; round < 50; ++round) {
    Stream stream(true);
    Gate gate;
    std::vector<u32> order;
    stream.enqueue([&] { gate.wait(); });
    stream.enqueue([&] { order.push_back(1); });
    const Event event = stream.record();
    stream.enqueue([&] { order.push_back(2); });
    std::thread opens([&] { gate.release(); });
    stream.finish();
    opens.join();
    CHECK(event.query());
    CHECK((order == std::vector<u32>{1, 2}));
  }
}

TEST(stream_may_be_finished_by_many_at_once) {
  Stream stream(true);
  u32 ran = 0;
  std::vector<std::thread> threads;
  for (u32 t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (u32 i = 0; i < 200; ++i) {
        stream.enqueue([&] { ++ran; });
        if (i % 3 == 0) stream.record();
        stream.finish();
      }
    });
  for (std::thread& t : threads) t.join();
  stream.finish();
  CHECK_EQ(ran, 800u);
}

TEST(stream_finish_leaves_the_error) {
  Stream stream(true);
  u32 ran = 0;
  stream.enqueue([] { throw std::runtime_error("first"); });
  CHECK_THROWS(std::runtime_error, stream.finish());
  stream.enqueue([&] { ++ran; });
  CHECK_THROWS(std::runtime_error, stream.finish());
  CHECK_THROWS(std::runtime_error, stream.synchronize());
  CHECK_EQ(ran, 0u);
  stream.enqueue([&] { ++ran; });
  stream.finish();
  CHECK_EQ(ran, 1u);
}

TEST(stream_functions_do_not_see_the_callers_floating_point_environment) {
  std::fenv_t before;
  std::fegetenv(&before);
  std::fesetround(FE_UPWARD);
  int on_caller = -1, on_thread = -1;
  {
    Stream stream(true);  // its thread inherits what is set here
    stream.enqueue([&] { on_caller = std::fegetround(); });
    stream.finish();
    stream.enqueue([&] { on_thread = std::fegetround(); });
    stream.record().wait(30 * kSecond);
  }
  CHECK_EQ(std::fegetround(), FE_UPWARD);
  std::fesetenv(&before);
  CHECK_EQ(on_caller, FE_TONEAREST);
  CHECK_EQ(on_thread, FE_TONEAREST);
}

#if defined(__x86_64__)
TEST(stream_functions_keep_denormals_whatever_the_caller_does) {
  constexpr u32 kFlushes = 0x8040;  // flush to zero, denormals are zeros
  const u32 before = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before | kFlushes);
  u32 seen = ~0u;
  Stream stream(true);
  stream.enqueue([&] { seen = __builtin_ia32_stmxcsr(); });
  stream.finish();
  const u32 after = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before);
  CHECK_EQ(seen & kFlushes, 0u);
  CHECK_EQ(after & kFlushes, kFlushes);
}
#endif

}  // namespace uccl::simt
