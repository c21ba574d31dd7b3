// The ring benchmark's kernels, run on fibers against the benchmark's own consumer threads: what it counts is what was
// pushed, for every push width, ring count and thread count, and its times are times.
#include <thread>
#include <vector>

#include "bench/device/ring_host.h"
#include "bench/device/ring_producer.h"
#include "kernels/device/on_device.h"
#include "native/check.h"
#include "proxy/ring/ring_memory.h"

namespace uccl::bench {
namespace {

constexpr u64 kLimitNs = 20'000'000'000;

struct World {
  World(u32 num_rings, u32 capacity) {
    for (u32 r = 0; r < num_rings; ++r) {
      memories.push_back(std::make_unique<testing::RingMemory>(capacity));
      pointers.push_back(memories.back()->data());
      views.push_back(ring_view(pointers.back(), capacity));
    }
  }
  ConsumerPlan plan(const std::vector<u64>& commands, u32 threads) const {
    return {pointers.data(),       commands.data(), nullptr, 0, kLimitNs, static_cast<u32>(views.size()),
            memories[0]->capacity, threads,         1};
  }
  RingBenchArgs args(u32 width, u32 pushes) {
    return {views.data(), &abort, &refused, nullptr, kLimitNs, 0, static_cast<u32>(views.size()), width, pushes, 0};
  }
  std::vector<std::unique_ptr<testing::RingMemory>> memories;
  std::vector<void*> pointers;
  std::vector<RingView> views;
  u64 abort = 0, refused = 0;
};

std::vector<u64> due(u32 num_rings, u32 warps, u32 width, u32 pushes) {
  std::vector<u64> commands(num_rings, 0);
  for (u32 w = 0; w < warps; ++w) commands[w % num_rings] += static_cast<u64>(width) * pushes;
  return commands;
}

void run_kernel(const RingBenchArgs& args, u32 grid, u32 warps, u32 threads) {
  simt::launch(simt::LaunchConfig{grid, warps * simt::kWarp, 0, threads, 0}, [&] { bench_ring_producer(args); });
}

void push_and_count(u32 num_rings, u32 threads, u32 width, u32 grid) {
  World world(num_rings, 8);
  const u32 warps = 2, pushes = 23;
  const std::vector<u64> commands = due(num_rings, grid * warps, width, pushes);
  Consumers consumers(world.plan(commands, threads));
  run_kernel(world.args(width, pushes), grid, warps, 2);
  ConsumerReport report;
  CHECK(consumers.join(&report));
  u64 numbers = 0, weighted = 0;
  for (u64 w = 0; w < static_cast<u64>(grid) * warps; ++w)
    for (u64 n = 0; n < static_cast<u64>(pushes) * width; ++n) numbers += n, weighted += n * (w + 1);
  CHECK_EQ(report.taken, static_cast<u64>(grid) * warps * width * pushes);
  CHECK_EQ(report.numbers, numbers);
  CHECK_EQ(report.weighted, weighted);
  CHECK_EQ(world.refused, 0u);
  CHECK(report.first_ns <= report.last_ns);
}

}  // namespace

TEST(bench_ring_producer_counts_what_was_pushed) {
  for (const u32 width : {1u, 8u, simt::kWarp}) push_and_count(1, 1, width, 2);
  push_and_count(3, 2, 8, 4);
  push_and_count(5, 3, 1, 3);
}

TEST(bench_ring_producer_times_round_trips_and_stamps) {
  World world(2, 4);
  const u32 pushes = 40, warps = 2;
  const std::vector<u64> commands = due(2, warps, 1, pushes);
  std::vector<u64> samples(2 * warps * pushes, 0), trips(warps * pushes, 0);
  ConsumerPlan plan = world.plan(commands, 2);
  plan.samples = samples.data();
  plan.most_samples = warps * pushes;
  RingBenchArgs args = world.args(1, pushes);
  args.round_trips = trips.data();
  args.stamped = 1;
  args.interval = 200'000;  // ns
  Consumers consumers(plan);
  const u64 begin = host_ns();
  run_kernel(args, 1, warps, 1);
  const u64 took = host_ns() - begin;
  ConsumerReport report;
  CHECK(consumers.join(&report));
  CHECK_EQ(report.num_samples, static_cast<u64>(warps) * pushes);
  CHECK(took >= args.interval * (pushes - 1));  // paced
  for (u64 i = 0; i < report.num_samples; ++i) {
    const u64 late = (samples[2 * i] - samples[2 * i + 1]) & low_bits(36);
    CHECK(late < took);  // taken after it was stamped
  }
  for (const u64 trip : trips) CHECK(trip > 0 && trip < took);
}

TEST(bench_ring_producer_says_when_nobody_takes) {
  World world(1, 4);
  RingBenchArgs args = world.args(1, 9);
  args.timeout_ns = 30'000'000;
  run_kernel(args, 1, 1, 1);
  CHECK_EQ(world.refused, 5u);  // 4 fit
}

TEST(bench_ring_producer_clock_answers_every_question) {
  u64 question = 0, abort = 0;
  u128 answer{0, 0};
  u64 result[5] = {};
  const u64 rounds = 50;
  const ClockBenchArgs args{&question, &answer, result, &abort, kLimitNs, rounds};
  std::thread device([&] { simt::on_warp([&] { bench_clock_answers(args); }); });
  std::vector<u64> samples(3 * rounds);
  const u64 answered = ask(&question, &answer, samples.data(), rounds, kLimitNs);
  device.join();
  CHECK_EQ(answered, rounds);
  for (u64 i = 0; i < rounds; ++i) {  // one and the same clock here, so each answer lies between its question's times
    CHECK(samples[3 * i] <= samples[3 * i + 2]);
    CHECK(samples[3 * i + 2] <= samples[3 * i + 1]);
  }
  CHECK(result[3] >= result[1] && result[4] > 0);
}

}  // namespace uccl::bench
