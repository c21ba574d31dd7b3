// Deaths of processes are told once, quickly, with and without pidfds, and never for one that lives.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/process_watch.h"
#include "engine/words.h"
#include "native/check.h"

using namespace uccl;

namespace {

pid_t spawn_sleeper() {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  alarm(50);
  for (;;) pause();
}
void end(pid_t pid) {
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}
bool within(u64 ns, const std::atomic<int>& calls, int wanted) {
  const u64 until = steady_ns() + ns;
  while (calls.load() != wanted && steady_ns() < until) usleep(1000);
  return calls.load() == wanted;
}

void kill_one_of_two(bool use_pidfd, bool reap) {
  const pid_t doomed = spawn_sleeper(), survivor = spawn_sleeper();
  std::atomic<int> calls{0};
  std::atomic<u32> peer{~0u};
  ProcessWatch watch({0, doomed, survivor, 0}, [&](u32 p) { peer = p, ++calls; }, use_pidfd);
  watch.start();
  usleep(20'000);
  const int early = calls.load();
  kill(doomed, SIGKILL);
  if (reap) waitpid(doomed, nullptr, 0);
  const bool told = within(500'000'000, calls, 1);
  usleep(2 * ProcessWatch::kPeriodMs * 1000);  // a second call would come within this
  watch.stop();
  watch.stop();
  end(survivor);
  if (!reap) waitpid(doomed, nullptr, 0);
  CHECK_EQ(early, 0);
  CHECK(told);
  CHECK_EQ(calls.load(), 1);
  CHECK_EQ(peer.load(), 1u);
}

}  // namespace

TEST(engine_process_watch_tells_one_death_with_pidfd) { kill_one_of_two(true, true); }
TEST(engine_process_watch_tells_one_death_without_pidfd) { kill_one_of_two(false, true); }
TEST(engine_process_watch_tells_a_zombie_with_pidfd) { kill_one_of_two(true, false); }
TEST(engine_process_watch_tells_a_zombie_without_pidfd) { kill_one_of_two(false, false); }

TEST(engine_process_watch_tells_a_process_that_was_gone_before) {
  const pid_t pid = spawn_sleeper();
  end(pid);
  for (const bool use_pidfd : {true, false}) {
    std::atomic<int> calls{0};
    ProcessWatch watch({pid}, [&](u32) { ++calls; }, use_pidfd);
    watch.start();
    CHECK(within(500'000'000, calls, 1));
  }
}

// As where /proc is mounted with hidepid: here no descriptor is left to look with.
TEST(engine_process_watch_takes_a_process_that_it_may_not_look_at_for_alive) {
  const pid_t pid = spawn_sleeper();
  std::atomic<int> calls{0};
  ProcessWatch watch({pid}, [&](u32) { ++calls; }, false);
  watch.start();
  rlimit before;
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{3, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  usleep(3 * ProcessWatch::kPeriodMs * 1000);
  const int early = calls.load();
  end(pid);
  const bool told = within(500'000'000, calls, 1);
  setrlimit(RLIMIT_NOFILE, &before);
  CHECK_EQ(early, 0);
  CHECK(told);
}

TEST(engine_process_watch_sleeps_after_a_death) {
  const pid_t doomed = spawn_sleeper(), survivor = spawn_sleeper();
  std::atomic<int> calls{0};
  ProcessWatch watch({doomed, survivor}, [&](u32) { ++calls; });
  watch.start();
  end(doomed);
  const bool told = within(500'000'000, calls, 1);
  timespec before, after;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  usleep(300'000);
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  watch.stop();
  end(survivor);
  CHECK(told);
  const auto ns = (after.tv_sec - before.tv_sec) * 1'000'000'000ll + after.tv_nsec - before.tv_nsec;
  CHECK(ns < 40'000'000);  // a dead pidfd stays readable: a watch that kept polling it would spin
}

TEST(engine_process_watch_without_processes_has_no_thread) {
  std::atomic<int> calls{0};
  ProcessWatch watch({0, 0}, [&](u32) { ++calls; });
  watch.start();
  watch.stop();
  CHECK_EQ(calls.load(), 0);
}

TEST(engine_process_watch_stops_at_once) {
  const pid_t pid = spawn_sleeper();
  const u64 before = steady_ns();
  {
    ProcessWatch watch({pid}, [](u32) {});
    watch.start();
  }
  const u64 took = steady_ns() - before;
  end(pid);
  CHECK(took < 1'000'000'000);
}

// Descriptors of this process, and its threads that watch (a sanitizer has threads too).
std::pair<std::size_t, std::size_t> counted() {
  std::size_t files = 0, watching = 0;
  for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) ++files;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(thread.path() / "comm") >> name;
    watching += name == "uccl-watch";
  }
  return {files, watching};
}

TEST(engine_process_watch_shares_a_thread_and_a_descriptor_a_process) {
  const pid_t doomed = spawn_sleeper(), survivor = spawn_sleeper();
  const auto before = counted();
  std::atomic<int> calls[3] = {};
  {
    std::vector<std::unique_ptr<ProcessWatch>> watches;
    for (std::atomic<int>& n : calls) {
      watches.push_back(std::make_unique<ProcessWatch>(std::vector<int>{0, doomed, survivor}, [&n](u32) { ++n; }));
      watches.back()->start();
    }
    const auto during = counted();
    watches.erase(watches.begin());  // the others go on, and it hears nothing any more
    end(doomed);
    const bool told = within(500'000'000, calls[1], 1) && within(500'000'000, calls[2], 1);
    ProcessWatch late({doomed}, [&](u32) { ++calls[0]; });
    late.start();
    const bool told_late = within(500'000'000, calls[0], 1);
    end(survivor);
    CHECK(told && told_late);
    CHECK(within(500'000'000, calls[1], 2));
    CHECK_EQ(during.first, before.first + 3);  // two pidfds and an eventfd
    CHECK_EQ(during.second, before.second + 1);
  }
  CHECK_EQ(calls[0].load(), 1);
  CHECK(counted() == before);
}

TEST(engine_process_watch_starts_and_stops_beside_others) {
  const pid_t pid = spawn_sleeper();
  const auto before = counted();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([pid] {
      for (int turn = 0; turn < 50; ++turn) {
        ProcessWatch watch({0, pid}, [](u32) { throw std::logic_error("it lives"); });
        watch.start();
      }
    });
  for (std::thread& thread : threads) thread.join();
  end(pid);
  CHECK(counted() == before);
}
