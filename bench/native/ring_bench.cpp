// The command ring alone, beside a raw hand-off of the same 16 bytes through the same cache lines in the same run:
// commands a second for 1..N producers and groups of 1, 8 and 32 (the fastest of several runs, and the median), and one
// command's round trip. Prints one JSON object.
//
//   ring_bench [most producers = 4] [commands per case = 400000] [latency samples = 50000] [repeats = 5]
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
#include "tests/proxy/ring/producer.h"

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

double million_per_s(u64 count, Clock::time_point start) {
  return static_cast<double>(count) / std::chrono::duration<double, std::micro>(Clock::now() - start).count();
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
      while (!go.load(std::memory_order_acquire)) sched_yield();  // pairs with the release below
      for (u64 i = 0; i < groups; ++i) ring_push(view, group, nullptr, Waiter{});
    });
  const auto start = Clock::now();
  go.store(true, std::memory_order_release);
  consume(memory.bytes.get(), groups * width * producers);
  const double reached = million_per_s(groups * width * producers, start);
  for (std::thread& t : threads) t.join();
  return reached;
}

// The least that a hand-off of 16 bytes can be: slots, each with its number, and the reader's position given back now
// and then. No tickets, no other producers, no packing, no `done`. One writer, one reader.
struct RawSlot {
  std::atomic<u64> number;  // 1 + position; release by the writer, acquire by the reader
  std::atomic<u64> payload;
};

double raw_rate(u64 total) {
  const auto slots = std::make_unique<RawSlot[]>(kCapacity);
  alignas(64) std::atomic<u64> read{0};  // the reader's position: release, so that a slot is read before it is reused
  std::atomic<bool> go{false};
  std::thread writer([&] {
    while (!go.load(std::memory_order_acquire)) sched_yield();  // pairs with the release below
    Waiter wait;
    u64 seen = 0;
    for (u64 i = 0; i < total; ++i) {
      while (i - seen >= kCapacity)
        if ((seen = read.load(std::memory_order_acquire)) + kCapacity <= i) wait();
      RawSlot& slot = slots[i % kCapacity];
      slot.payload.store(i, std::memory_order_relaxed);
      slot.number.store(i + 1, std::memory_order_release);
    }
  });
  const auto start = Clock::now();
  go.store(true, std::memory_order_release);
  Waiter wait;
  u64 sum = 0;
  for (u64 i = 0; i < total; ++i) {
    while (slots[i % kCapacity].number.load(std::memory_order_acquire) != i + 1) wait();
    sum += slots[i % kCapacity].payload.load(std::memory_order_relaxed);
    if (i % 32 == 31) read.store(i + 1, std::memory_order_release);
  }
  const double reached = million_per_s(total, start);
  writer.join();
  return sum == total * (total - 1) / 2 ? reached : 0.0;
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

// Nanoseconds of a word there and a word back, sorted.
std::vector<u64> raw_latencies(u64 samples) {
  struct alignas(64) Line {
    std::atomic<u64> word{0};
  };
  Line there, back;
  std::thread other([&] {
    Waiter wait;
    for (u64 i = 1; i <= samples; ++i) {
      while (there.word.load(std::memory_order_acquire) != i) wait();  // pairs with the store below
      back.word.store(i, std::memory_order_release);
    }
  });
  std::vector<u64> ns;
  ns.reserve(samples);
  Waiter wait;
  for (u64 i = 1; i <= samples; ++i) {
    const auto start = Clock::now();
    there.word.store(i, std::memory_order_release);
    while (back.word.load(std::memory_order_acquire) != i) wait();
    ns.push_back(static_cast<u64>(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count()));
  }
  other.join();
  std::sort(ns.begin(), ns.end());
  return ns;
}

// Other programs only ever slow a hand-off down, so the fastest of several tells most about the hand-off.
double best(const std::vector<double>& values) { return *std::max_element(values.begin(), values.end()); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void print(const char* name, const std::vector<u64>& ns) {
  std::printf("\"%s\": {\"samples\": %zu", name, ns.size());
  const std::pair<const char*, std::size_t> shares[] = {
      {"p50", 500}, {"p90", 900}, {"p99", 990}, {"p999", 999}, {"max", 1000}};
  for (const auto& [label, per_mille] : shares)
    std::printf(", \"%s\": %llu", label, static_cast<unsigned long long>(ns[(ns.size() - 1) * per_mille / 1000]));
  std::printf("}");
}

struct Case {
  u32 producers, width;
  std::vector<double> rates;
};

u64 argument(int argc, char** argv, int index, u64 otherwise) {
  const u64 value = argc > index ? std::strtoull(argv[index], nullptr, 10) : otherwise;
  return value > 0 ? value : otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  const u64 most = argument(argc, argv, 1, 4), total = argument(argc, argv, 2, 400'000);
  const u64 samples = argument(argc, argv, 3, 50'000), repeats = argument(argc, argv, 4, 5);
  std::vector<Case> cases;
  for (u32 producers = 1; producers <= most; ++producers)
    for (const u32 width : {1u, 8u, 32u}) cases.push_back({producers, width, {}});
  std::vector<double> raw;
  for (u64 i = 0; i < repeats; ++i)  // in turns: a machine that is shared is fast and slow by the second
    for (Case& c : cases) {
      raw.push_back(raw_rate(total));
      c.rates.push_back(rate(c.producers, c.width, total));
    }
  std::printf(
      "{\"benchmark\": \"ring\", \"cpus\": %u, \"capacity\": %u, \"commands\": %llu, \"repeats\": %llu,\n"
      " \"rates\": [",
      std::thread::hardware_concurrency(), kCapacity, static_cast<unsigned long long>(total),
      static_cast<unsigned long long>(repeats));
  const char* separator = "\n  ";
  for (const Case& c : cases) {
    std::printf("%s{\"producers\": %u, \"width\": %u, \"median\": %.3f, \"million_per_s\": %.3f, \"of_raw\": %.3f}",
                separator, c.producers, c.width, median(c.rates), best(c.rates), best(c.rates) / best(raw));
    separator = ",\n  ";
  }
  std::printf("\n ],\n \"raw\": {\"median\": %.3f, \"million_per_s\": %.3f, ", median(raw), best(raw));
  print("round_trip_ns", raw_latencies(samples));
  std::printf("},\n ");
  print("round_trip_ns", latencies(samples));
  std::printf("}\n");
  return *std::min_element(raw.begin(), raw.end()) > 0 ? 0 : 1;  // 0: the reader saw wrong payloads
}
