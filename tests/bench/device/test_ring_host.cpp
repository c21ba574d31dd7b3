// The ring benchmark's host side without any kernel: host producers, time limits, samples of several threads.
#include <atomic>
#include <thread>
#include <vector>

#include "bench/device/ring_host.h"
#include "native/check.h"
#include "proxy/ring/ring_memory.h"

namespace uccl::bench {
namespace {

constexpr u64 kLimitNs = 20'000'000'000;

}  // namespace

TEST(bench_ring_host_producers_and_consumers_agree) {
  const u32 capacity = 16, num_rings = 3, warps = 7, pushes = 60;
  std::vector<std::unique_ptr<testing::RingMemory>> memories;
  std::vector<void*> pointers;
  std::vector<RingView> views;
  std::vector<u64> commands(num_rings, 0);
  for (u32 r = 0; r < num_rings; ++r) {
    memories.push_back(std::make_unique<testing::RingMemory>(capacity));
    pointers.push_back(memories[r]->data());
    views.push_back(ring_view(pointers[r], capacity));
  }
  for (const u32 width : {1u, 8u, 32u}) {
    for (u32 w = 0; w < warps; ++w) commands[w % num_rings] = 0;
    for (u32 w = 0; w < warps; ++w) commands[w % num_rings] += static_cast<u64>(pushes) * width;
    std::vector<u64> samples(2 * 100, 0);
    const ConsumerPlan plan{pointers.data(), commands.data(), samples.data(), 100, kLimitNs, num_rings, capacity, 2, 5};
    u64 abort = 0, refused = 0;
    std::vector<u64> trips(static_cast<u64>(warps) * pushes, 0);
    const RingBenchArgs args{views.data(), &abort, &refused, trips.data(), kLimitNs, 0, num_rings, width, pushes, 1};
    Consumers consumers(plan);
    std::vector<std::thread> threads;
    std::atomic<u64> left_out{0};
    for (u32 t = 0; t < 2; ++t) threads.emplace_back([&, t] { left_out.fetch_add(produce_share(args, warps, t, 2)); });
    for (std::thread& thread : threads) thread.join();
    ConsumerReport report;
    CHECK(consumers.join(&report));
    CHECK_EQ(left_out.load(), 0u);
    const u64 each = static_cast<u64>(pushes) * width;
    CHECK_EQ(report.taken, warps * each);
    CHECK_EQ(report.numbers, warps * (each * (each - 1) / 2));
    CHECK_EQ(report.weighted, warps * (warps + 1) / 2 * (each * (each - 1) / 2));
    CHECK(report.num_samples > 50 && report.num_samples <= 100);
    for (u64 i = 0; i < report.num_samples; ++i)
      CHECK(((samples[2 * i] - samples[2 * i + 1]) & low_bits(36)) < 20'000'000'000);
    for (const u64 trip : trips) CHECK(trip > 0);
  }
}

TEST(bench_ring_host_consumers_end_when_commands_stay_away) {
  testing::RingMemory memory(4);
  void* const pointer = memory.data();
  const u64 commands = 2;
  const ConsumerPlan plan{&pointer, &commands, nullptr, 0, 40'000'000, 1, 4, 1, 1};
  const Command command{Op::kWrite, 0, 0, 0, 0, 16};
  CHECK(ring_push(ring_view(pointer, 4), {&command, 1}, nullptr, [] { return false; }));
  Consumers consumers(plan);
  ConsumerReport report;
  CHECK(!consumers.join(&report));
  CHECK_EQ(report.taken, 1u);
}

TEST(bench_ring_host_questions_end_when_nobody_answers) {
  u64 question = 0;
  u128 answer{0, 0};
  u64 samples[6] = {};
  CHECK_EQ(ask(&question, &answer, samples, 2, 40'000'000), 0u);
  CHECK_EQ(question, 1u);
}

TEST(bench_ring_host_answers_on_the_host) {
  u64 question = 0, abort = 0, result[5] = {};
  u128 answer{0, 0};
  const ClockBenchArgs args{&question, &answer, result, &abort, kLimitNs, 30};
  std::thread device([&] { answer_share(args); });
  std::vector<u64> samples(90);
  const u64 answered = ask(&question, &answer, samples.data(), 30, kLimitNs);
  device.join();
  CHECK_EQ(answered, 30u);
  for (u64 i = 0; i < 30; ++i) CHECK(samples[3 * i] <= samples[3 * i + 2] && samples[3 * i + 2] <= samples[3 * i + 1]);
  CHECK(result[2] >= result[0]);
}

}  // namespace uccl::bench
