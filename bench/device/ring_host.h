// The ring benchmark's host side: consumer threads that take commands as a proxy does and count, check and time them;
// the host's half of the clock comparison; and both kernels of ring_producer.h as host threads, for machines without a
// GPU. One clock throughout: steady_clock's nanoseconds.
#pragma once
#include <sched.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "bench/device/ring_args.h"
#include "ring/consumer.h"
#include "tests/proxy/ring/producer.h"

namespace uccl::bench {

inline u64 host_ns() {
  using namespace std::chrono;
  return static_cast<u64>(duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count());
}

// Spins a little, then lets other threads run; false when the time is over (looked at every 1,024 turns).
struct Spin {
  explicit Spin(u64 until) : until_ns(until) {}
  bool operator()() {
    if (++turns % 64 == 0) sched_yield();
    return turns % 1024 != 0 || host_ns() < until_ns;
  }
  u64 until_ns;
  u64 turns = 0;
};

struct ConsumerPlan {
  void* const* rings;    // [num_rings] RingHeader and slots
  const u64* commands;   // [num_rings] how many to take
  u64* samples;          // [most_samples][2]: (host ns, stamp of the command in ns, 36 bits); or null
  u64 most_samples;      // over all threads
  u64 timeout_ns;
  u32 num_rings;
  u32 capacity;          // of each ring
  u32 num_threads;       // ring r belongs to thread r % num_threads
  u32 sample_every;      // of the commands of a thread, 1 or more
};
static_assert(sizeof(ConsumerPlan) == 56);

struct ConsumerReport {
  u64 taken;
  u64 first_ns, last_ns;  // when the first and the last command of all were taken
  u64 numbers;            // sum of the commands' numbers
  u64 weighted;           // sum of number x (warp + 1): tells whose commands they were
  u64 num_samples;
};
static_assert(sizeof(ConsumerReport) == 48);

// One consumer thread's work and what it saw; nothing is shared with the others.
class Consumer {
 public:
  Consumer(const ConsumerPlan& plan, u32 thread) : plan_(plan) {
    for (u32 r = thread; r < plan.num_rings; r += plan.num_threads)
      mine_.push_back(Ring{RingConsumer(plan.rings[r], plan.capacity), plan.commands[r]});
    room_ = plan.samples != nullptr ? plan.most_samples / plan.num_threads : 0;
    samples_ = plan.samples != nullptr ? plan.samples + 2 * room_ * thread : nullptr;
    report_.first_ns = ~0ull;
  }

  // False: the time was over before every command had come.
  bool run() {
    Spin spin(host_ns() + plan_.timeout_ns);
    for (;;) {
      u64 left = 0, taken = 0;
      for (Ring& ring : mine_) {
        if (ring.left != 0) taken += take(&ring);
        left += ring.left;
      }
      if (left == 0) return true;
      if (taken == 0 && !spin()) return false;
    }
  }
  const ConsumerReport& report() const { return report_; }
  const u64* samples() const { return samples_; }

 private:
  struct Ring {
    RingConsumer consumer;
    u64 left;
  };

  u32 take(Ring* ring) {
    Command c;
    u32 batch = 0;
    for (; batch < 32 && batch < ring->left && ring->consumer.peek(&c); ++batch) {
      ring->consumer.advance();
      note(c);
    }
    if (batch == 0) return 0;
    ring->left -= batch;
    ring->consumer.publish_tail();
    ring->consumer.publish_done(ring->consumer.next_ticket());
    report_.last_ns = host_ns();
    return batch;
  }

  void note(const Command& c) {
    const u64 number = c.local_offset / kWireUnitBytes;
    if (report_.taken == 0) report_.first_ns = host_ns();
    report_.numbers += number;
    report_.weighted += number * (c.key + 1);
    if (report_.taken++ % plan_.sample_every != 0 || report_.num_samples >= room_) return;
    samples_[2 * report_.num_samples] = host_ns();
    samples_[2 * report_.num_samples++ + 1] = c.remote_offset / kWireUnitBytes;
  }

  const ConsumerPlan plan_;
  std::vector<Ring> mine_;
  u64* samples_ = nullptr;
  u64 room_ = 0;
  ConsumerReport report_{};
};

// Consumer threads from construction to join().
class Consumers {
 public:
  explicit Consumers(const ConsumerPlan& plan) : plan_(plan) {
    for (u32 t = 0; t < plan.num_threads; ++t) consumers_.push_back(std::make_unique<Consumer>(plan, t));
    for (auto& consumer : consumers_)
      threads_.emplace_back([this, c = consumer.get()] {
        if (!c->run()) in_time_.store(false, std::memory_order_relaxed);
      });
  }
  Consumers(const Consumers&) = delete;
  ~Consumers() { end(); }

  // Sums what the threads saw and moves their samples together. False: some command did not come in time.
  bool join(ConsumerReport* sum) {
    end();
    *sum = ConsumerReport{};
    sum->first_ns = ~0ull;
    for (const auto& consumer : consumers_) {
      const ConsumerReport& r = consumer->report();
      for (u64 i = 0; i < 2 * r.num_samples; ++i) plan_.samples[2 * sum->num_samples + i] = consumer->samples()[i];
      sum->num_samples += r.num_samples;
      sum->taken += r.taken;
      sum->numbers += r.numbers;
      sum->weighted += r.weighted;
      sum->first_ns = r.first_ns < sum->first_ns ? r.first_ns : sum->first_ns;
      sum->last_ns = r.last_ns > sum->last_ns ? r.last_ns : sum->last_ns;
    }
    return in_time_.load(std::memory_order_relaxed);
  }

 private:
  void end() {
    for (std::thread& thread : threads_)
      if (thread.joinable()) thread.join();
  }

  const ConsumerPlan plan_;
  std::vector<std::unique_ptr<Consumer>> consumers_;
  std::vector<std::thread> threads_;
  std::atomic<bool> in_time_{true};
};

// Asks the other clock `rounds` times; samples[i] = (host ns before, host ns after, the other's ns). Returns how many
// answers came in time. `question` and `answer` are the host's addresses of the words in ClockBenchArgs.
inline u64 ask(u64* question, u128* answer, u64* samples, u64 rounds, u64 timeout_ns) {
  Spin spin(host_ns() + timeout_ns);
  for (u64 round = 1; round <= rounds; ++round) {
    const u64 before = host_ns();
    std::atomic_ref<u64>(*question).store(round, std::memory_order_release);  // pairs with bench_clock_answers' acquire
    // Pairs with the release of the answer, whose 16 bytes are one store.
    while (std::atomic_ref<u64>(answer->lo).load(std::memory_order_acquire) != round)
      if (!spin()) return round - 1;
    samples[3 * (round - 1)] = before;
    samples[3 * (round - 1) + 1] = host_ns();
    samples[3 * (round - 1) + 2] = std::atomic_ref<u64>(answer->hi).load(std::memory_order_acquire);
  }
  return rounds;
}

// What bench_ring_producer does, one warp after the other on each of `threads` host threads. Returns refused commands.
inline u64 produce_share(const RingBenchArgs& a, u32 warps, u32 thread, u32 threads) {
  u64 refused = 0;
  std::vector<Command> group(a.width);
  const u64 start = host_ns(), until = start + a.timeout_ns;
  for (u32 i = 0; i < a.pushes; ++i)
    for (u32 number = thread; number < warps; number += threads) {
      const RingView& ring = a.rings[number % a.num_rings];
      Spin spin(until);
      const u64 due = start + a.interval * (number + 1) / warps + a.interval * i;
      while (a.interval != 0 && host_ns() < due && spin()) {}
      const u64 before = host_ns();
      for (u32 l = 0; l < a.width; ++l)
        group[l] = Command{Op::kWrite,
                           number % a.num_rings,
                           static_cast<u32>(number & low_bits(kKeyBits)),
                           (static_cast<u64>(i) * a.width + l) * kWireUnitBytes,
                           a.stamped != 0 ? ring_stamp(host_ns()) : 0,
                           7168};
      u64 ticket = 0;
      if (!ring_push(ring, group, &ticket, spin)) return refused + a.width;
      if (a.round_trips == nullptr) continue;
      // Pairs with RingConsumer::publish_done.
      while (std::atomic_ref<u64>(*const_cast<u64*>(ring.done)).load(std::memory_order_acquire) <= ticket)
        if (!spin()) return refused + 1;
      a.round_trips[static_cast<u64>(number) * a.pushes + i] = host_ns() - before;
    }
  return refused;
}

// What bench_clock_answers does.
inline void answer_share(const ClockBenchArgs& a) {
  Spin spin(host_ns() + a.timeout_ns);
  a.result[0] = a.result[1] = host_ns();
  a.result[4] = 1;
  for (u64 round = 1; round <= a.rounds; ++round) {
    // Pairs with the release in ask().
    while (std::atomic_ref<u64>(*const_cast<u64*>(a.question)).load(std::memory_order_acquire) < round)
      if (!spin()) return;
    std::atomic_ref<u64>(a.answer->hi).store(host_ns(), std::memory_order_release);
    std::atomic_ref<u64>(a.answer->lo).store(round, std::memory_order_release);  // pairs with the acquire in ask()
  }
  a.result[2] = a.result[3] = host_ns();
}

}  // namespace uccl::bench
