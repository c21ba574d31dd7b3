// The command ring alone: commands a second for 1..N producers and groups of 1, 8 and 32, and the latency of one
// command from push to `done`. Prints one JSON object.
//
//   ring_bench [most producers = 4] [commands per case = 2000000] [latency samples = 100000]
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "ring/consumer.h"
#include "ring/producer.h"

using namespace uccl;

namespace {

using Clock = std::chrono::steady_clock;
constexpr u32 kCapacity = 1024;

struct Memory {
  Memory() : bytes(std::aligned_alloc(64, align_up(ring_bytes(kCapacity), 64)), &std::free) {
    std::fill_n(static_cast<u8*>(bytes.get()), ring_bytes(kCapacity), u8{0});
  }
  std::unique_ptr<void, void (*)(void*)> bytes;
};

// Spins a little, then lets other threads run: producers and consumer may share a core.
struct Waiter {
  bool operator()() {
    if (++spins % 64 == 0) sched_yield();
    return true;
  }
  u32 spins = 0;
};

void consume(void* memory, u64 total) {
  RingConsumer consumer(memory, kCapacity);
  Command c;
  Waiter wait;
  for (u64 taken = 0; taken < total;) {
    u32 batch = 0;
    for (; batch < 32 && consumer.peek(&c); ++batch) consumer.advance();
    if (batch == 0) {
      wait();
      continue;
    }
    taken += batch;
    consumer.publish_tail();
    consumer.publish_done(consumer.next_ticket());
  }
}

// Million commands a second from `producers` threads that push groups of `width`.
double rate(u32 producers, u32 width, u64 total) {
  Memory memory;
  const RingView view = ring_view(memory.bytes.get(), kCapacity);
  const u64 groups = std::max<u64>(1, total / producers / width);
  std::atomic<bool> go{false};
  std::vector<std::thread> threads;
  for (u32 p = 0; p < producers; ++p)
    threads.emplace_back([&, p] {
      const std::vector<Command> group(width, Command{Op::kWrite, p, 1, 16, 32, 7168});
      while (!go.load(std::memory_order_acquire)) sched_yield();
      for (u64 i = 0; i < groups; ++i) ring_push(view, group, nullptr, Waiter{});
    });
  const auto start = Clock::now();
  go.store(true, std::memory_order_release);
  consume(memory.bytes.get(), groups * width * producers);
  const double us = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
  for (std::thread& t : threads) t.join();
  return static_cast<double>(groups * width * producers) / us;
}

// Nanoseconds from before the push until `done` has passed it, sorted.
std::vector<u64> latencies(u64 samples) {
  Memory memory;
  const RingView view = ring_view(memory.bytes.get(), kCapacity);
  std::thread proxy([&] { consume(memory.bytes.get(), samples); });
  std::vector<u64> ns;
  ns.reserve(samples);
  const Command command{Op::kWrite, 1, 1, 16, 32, 7168};
  for (u64 i = 0; i < samples; ++i) {
    const auto start = Clock::now();
    u64 ticket;
    ring_push(view, {&command, 1}, &ticket, Waiter{});
    Waiter wait;
    while (std::atomic_ref<u64>(*const_cast<u64*>(view.done)).load(std::memory_order_acquire) <= ticket) wait();
    ns.push_back(static_cast<u64>(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count()));
  }
  proxy.join();
  std::sort(ns.begin(), ns.end());
  return ns;
}

u64 argument(int argc, char** argv, int index, u64 otherwise) {
  const u64 value = argc > index ? std::strtoull(argv[index], nullptr, 10) : otherwise;
  return value > 0 ? value : otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  const u64 most = argument(argc, argv, 1, 4), total = argument(argc, argv, 2, 2'000'000);
  const std::vector<u64> ns = latencies(argument(argc, argv, 3, 100'000));
  std::printf("{\"benchmark\": \"ring\", \"cpus\": %u, \"capacity\": %u, \"commands\": %llu,\n \"rates\": [",
              std::thread::hardware_concurrency(), kCapacity, total);
  const char* separator = "\n  ";
  for (u64 producers = 1; producers <= most; ++producers)
    for (const u32 width : {1u, 8u, 32u}) {
      std::printf("%s{\"producers\": %llu, \"width\": %u, \"million_per_s\": %.2f}", separator, producers, width,
                  rate(static_cast<u32>(producers), width, total));
      separator = ",\n  ";
    }
  std::printf("\n ],\n \"round_trip_ns\": {\"samples\": %zu", ns.size());
  const std::pair<const char*, std::size_t> shares[] = {
      {"p50", 500}, {"p90", 900}, {"p99", 990}, {"p999", 999}, {"max", 1000}};
  for (const auto& [name, per_mille] : shares)
    std::printf(", \"%s\": %llu", name, ns[(ns.size() - 1) * per_mille / 1000]);
  std::printf("}}\n");
  return 0;
}
