// The doorbell: a ring ends a sleep of any thread, also one that was about to begin, and costs nothing where nobody
// sleeps.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "engine/doorbell.h"
#include "memory/segment.h"
#include "native/check.h"

using namespace uccl;

namespace {

constexpr u64 kLongNs = 20'000'000'000;  // longer than any test may take

struct Control {
  u8* data() { return words.data(); }
  u32 sleepers() { return std::atomic_ref<u32>(*reinterpret_cast<u32*>(data() + ControlLayout::kSleepers)).load(); }
  alignas(64) std::array<u8, ControlLayout::kTables> words{};
};

}  // namespace

TEST(engine_doorbell_is_heard_once_by_each_thread) {
  Control control;
  Doorbell first(control.data()), second(control.data());
  CHECK(!first.heard());
  Doorbell::ring(control.data());
  Doorbell::ring(control.data());
  CHECK(first.heard() && !first.heard());
  CHECK(second.heard() && !second.heard());
  Doorbell late(control.data());
  CHECK(!late.heard());
}

TEST(engine_doorbell_ends_sleeps) {
  Control control;
  std::vector<std::thread> threads;
  std::atomic<u32> woken{0};
  for (u32 i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      Doorbell bell(control.data());
      bell.sleep(kLongNs);
      woken += bell.heard();
    });
  while (control.sleepers() != 3) std::this_thread::yield();
  const u64 before = steady_ns();
  // A sleeper counts itself before it asks the kernel to sleep; a ring in between is seen by the kernel.
  Doorbell::ring(control.data());
  for (std::thread& thread : threads) thread.join();
  CHECK(steady_ns() - before < kLongNs / 2);
  CHECK_EQ(woken.load(), 3u);
  CHECK_EQ(control.sleepers(), 0u);
}

// A proxy in a process of its own (UCCL_EP_PROXY=process) maps the control segment elsewhere.
TEST(engine_doorbell_ends_the_sleep_of_another_process) {
  const auto mine = Segment::create("test", ControlLayout::kTables);
  u8* const control = static_cast<u8*>(mine->data());
  const int fd = mine->fd();
  const pid_t child = fork();
  if (child == 0) {  // it opens the segment as a process of its own does: what it inherits is no longer shared
    const auto its = Segment::open(getppid(), fd, ControlLayout::kTables);
    Doorbell bell(static_cast<u8*>(its->data()));
    bell.sleep(kLongNs);
    _exit(bell.heard() ? 0 : 1);
  }
  u32& sleepers = *reinterpret_cast<u32*>(control + ControlLayout::kSleepers);
  while (std::atomic_ref<u32>(sleepers).load() == 0) std::this_thread::yield();
  const u64 before = steady_ns();
  Doorbell::ring(control);
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK(steady_ns() - before < kLongNs / 2);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(engine_doorbell_rung_before_a_sleep_ends_it) {
  Control control;
  Doorbell bell(control.data());
  Doorbell::ring(control.data());
  const u64 before = steady_ns();
  bell.sleep(kLongNs);
  CHECK(steady_ns() - before < kLongNs / 2);
  CHECK(bell.heard());
  bell.sleep(1'000'000);  // heard: this one lasts
  CHECK(steady_ns() - before >= 900'000);
}

TEST(engine_doorbell_keeps_awake_for_good) {
  Control control;
  Doorbell bell(control.data());
  CHECK(bell.may_sleep_long());
  Doorbell::keep_awake(control.data());
  CHECK(bell.may_sleep_long() == false);
}
