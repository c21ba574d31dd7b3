// What proxies cost while nothing happens, and how long the first command after a pause waits; in turn with it, how long
// a thread that does nothing else needs to answer from such a sleep, which is as soon as this machine wakes anybody. Two
// ranks with one proxy thread each, over loopback. Prints one JSON object.
//
//   proxy_idle [idle seconds = 2] [wakes = 100]
#include <sched.h>
#include <sys/resource.h>
#include <time.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "bench/native/two_ranks.h"
#include "engine/idle.h"
#include "wire/immediate.h"

using namespace uccl;

namespace {

constexpr u64 kPauseNs = IdleLadder::kAsleepAfterNs + 50'000'000;  // before each wake: both are asleep again
constexpr u64 kDeadlineNs = 5'000'000'000;

double cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

void pause_ns(u64 ns) {
  const timespec t{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  clock_nanosleep(CLOCK_MONOTONIC, 0, &t, nullptr);
}

// Spins, since it measures; another thread of this core still has its turn now and then.
template <class Condition>
bool spin_until(Condition&& condition, u64 since_ns) {
  for (u32 i = 1; !condition(); ++i) {
    if (i % 1024 == 0 && steady_ns() - since_ns > kDeadlineNs) return false;
    if (i % 4096 == 0) sched_yield();
  }
  return true;
}

void print(const char* name, std::vector<u64>& ns) {
  std::sort(ns.begin(), ns.end());
  std::printf(", \"%s\": {\"samples\": %zu", name, ns.size());
  const std::pair<const char*, std::size_t> shares[] = {{"p50", 50}, {"p90", 90}, {"p99", 99}, {"max", 100}};
  for (const auto& [label, percent] : shares)
    std::printf(", \"%s\": %.1f", label, static_cast<double>(ns[(ns.size() - 1) * percent / 100]) / 1e3);
  std::printf("}");
}

// A thread that sleeps on a futex and answers each call with a store.
class Sleeper {
 public:
  Sleeper() : thread_([this] { run(); }) {}
  ~Sleeper() {
    calls_.store(kEnd);
    calls_.notify_one();
    thread_.join();
  }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  u64 wake_ns() {
    const u64 start = steady_ns();
    const u32 call = calls_.fetch_add(1) + 1;
    calls_.notify_one();
    spin_until([&] { return answers_.load(std::memory_order_acquire) == call; }, start);
    return steady_ns() - start;
  }

 private:
  static constexpr u32 kEnd = ~0u;
  void run() {
    for (u32 seen = 0;;) {
      calls_.wait(seen);
      seen = calls_.load();
      if (seen == kEnd) return;
      answers_.store(seen, std::memory_order_release);
    }
  }
  std::atomic<u32> calls_{0}, answers_{0};
  std::thread thread_;
};

int measure(u64 idle_seconds, u64 wakes) {
  TwoRanks world;
  const u64 nap_ns = world.a.settings.nap_ns;
  Engine a(world.a.settings, std::move(world.a.transport), world.a.worker_counters.data(),
           world.a.peer_counters.data());
  Engine b(world.b.settings, std::move(world.b.transport), world.b.worker_counters.data(),
           world.b.peer_counters.data());
  a.start();
  b.start();
  pause_ns(2 * IdleLadder::kAsleepAfterNs);  // both have come to rest
  const double cpu = cpu_seconds();
  const u64 begin = steady_ns();
  pause_ns(idle_seconds * 1'000'000'000);
  const double share = (cpu_seconds() - cpu) / (static_cast<double>(steady_ns() - begin) / 1e9) / 2;
  std::vector<u64> taken_ns, arrived_ns, bare_ns;
  Sleeper sleeper;
  for (u64 i = 0; i < wakes; ++i) {
    pause_ns(kPauseNs);
    bare_ns.push_back(sleeper.wake_ns());
    pause_ns(kPauseNs);
    const Command c{Op::kSequence, 1, stream_key(Direction::kDispatch, 0, i), 64, 64, 16};
    const u64 start = steady_ns();
    Doorbell::ring(world.a.settings.control);  // as the host does before it launches a kernel
    world.a.push({&c, 1});
    u64& tail = *const_cast<u64*>(world.a.view().tail);
    const bool taken = spin_until([&] { return read_word(tail) > i; }, start);
    taken_ns.push_back(steady_ns() - start);
    const u64 word = world.b.layout.tail(Direction::kDispatch, 0, 0);
    if (!taken || !spin_until([&] { return world.b.word(word) > i; }, start)) {
      std::fprintf(stderr, "proxy_idle: a command was not carried within 5 s\n");
      return 1;
    }
    arrived_ns.push_back(steady_ns() - start);
  }
  a.stop(1'000'000'000);
  b.stop(1'000'000'000);
  std::printf(
      "{\"benchmark\": \"idle proxies\", \"threads\": 2, \"longest_nap_us\": %.1f, \"idle_s\": %llu, "
      "\"core_percent_per_thread\": %.3f",
      static_cast<double>(nap_ns) / 1e3, static_cast<unsigned long long>(idle_seconds), share * 100);
  print("wake_us", taken_ns);
  print("bare_wake_us", bare_ns);
  print("arrival_us", arrived_ns);
  std::printf("}\n");
  return 0;
}

u64 argument(int argc, char** argv, int index, u64 otherwise) {
  const u64 value = argc > index ? std::strtoull(argv[index], nullptr, 10) : otherwise;
  return value > 0 ? value : otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return measure(argument(argc, argv, 1, 2), argument(argc, argv, 2, 100));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "proxy_idle: %s\n", error.what());
    return 1;
  }
}
