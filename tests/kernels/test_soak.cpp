// Both modes mixed on the same engines for some seconds, NATIVE_SOAK_S (3 by default): rounds of either kind follow each
// other with nothing in between, in a random delivery order, every row is compared, and nothing may grow. Meant for
// ThreadSanitizer.
#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "kernels/low_latency/calls.h"
#include "kernels/throughput/calls.h"
#include "native/check.h"

// Of the sanitizers' common interface; weak, since a build without one has no such function.
extern "C" std::size_t __sanitizer_get_current_allocated_bytes() __attribute__((weak));

namespace uccl::testing {
namespace {

constexpr u64 kLeastBatches = 8;  // measures that growth is judged by
constexpr u64 kHeapNoise = 256 << 10;  // bytes: buffers that have not met their largest use yet
constexpr u64 kBatch = 6;  // rounds between two looks at the clock; ranks agree on their number without talking

double soak_seconds() {
  const char* text = std::getenv("NATIVE_SOAK_S");
  if (text == nullptr || *text == '\0') return 3.0;
  std::size_t used = 0;
  double seconds = 0.0;
  try {
    seconds = std::stod(text, &used);
  } catch (const std::exception&) { used = 0; }
  if (used != std::string(text).size() || !(seconds > 0.0 && seconds <= 86400.0))
    check::fail(__FILE__, __LINE__, "NATIVE_SOAK_S='" + std::string(text) + "': allowed is a number, 0 to 86400");
  return seconds;
}

WorldShape soak_shape(const std::vector<u32>& node_of) {
  WorldShape shape;
  shape.node_of = node_of;
  shape.num_rings = shape.num_workers = 2;
  shape.max_in_flight = 8;
  shape.shuffle_seed = 41;
  shape.max_tokens = 6;
  shape.hidden = 128;
  shape.max_topk = 4;
  shape.unit_bytes = 2048;
  return shape;
}

// What a process holds while none of its ranks runs: bytes, descriptors, threads.
struct Footprint {
  u64 heap, descriptors, threads;
};
Footprint take_footprint() {
  const auto entries = [](const char* folder) {
    const std::filesystem::directory_iterator all(folder);
    return static_cast<u64>(std::distance(begin(all), end(all)));
  };
  const auto allocated = [] {
    const struct mallinfo2 all = mallinfo2();
    return all.uordblks + all.hblkhd;  // small pieces, and large ones that have a mapping of their own
  };
  const u64 heap = &__sanitizer_get_current_allocated_bytes ? __sanitizer_get_current_allocated_bytes() : allocated();
  // A thread that was joined is still listed for a moment, and for longer in an emulator.
  u64 threads = entries("/proc/self/task");
  for (int look = 0; look < 20; ++look) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    threads = std::min(threads, entries("/proc/self/task"));
  }
  return {heap, entries("/proc/self/fd"), threads};
}

// The least of the second half may not be above the least of the first; the first quarter is warm-up.
void check_growth(const std::vector<Footprint>& all) {
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() * 5 / 8);
  const auto grown = [&](u64 Footprint::* what) {
    const auto less = [what](const Footprint& a, const Footprint& b) { return a.*what < b.*what; };
    const u64 before =
        (*std::min_element(all.begin() + static_cast<std::ptrdiff_t>(all.size() / 4), middle, less)).*what;
    const u64 after = (*std::min_element(middle, all.end(), less)).*what;
    return after > before ? after - before : 0;
  };
  CHECK_EQ(grown(&Footprint::descriptors), 0u);
  CHECK_EQ(grown(&Footprint::threads), 0u);
  CHECK(grown(&Footprint::heap) <= kHeapNoise);
}

// Returns the rounds of each rank. `keep` is called after each batch: a test of the soak itself plants a leak there.
u64 soak(const std::vector<u32>& node_of, double seconds, const std::function<void()>& keep = [] {}) {
  alarm(static_cast<unsigned>(seconds) + 200);  // instead of the limit of tests that are as long as they are
  std::vector<Footprint> footprints;
  World world(soak_shape(node_of));
  LowLatencyCase low;
  low.num_experts = 2 * world.num_ranks();
  ThroughputCase high;
  high.num_experts = 2 * world.num_ranks();
  high.max_tokens = 10;
  std::vector<std::unique_ptr<LowLatencyRank>> low_ranks;
  std::vector<std::unique_ptr<ThroughputRank>> high_ranks;
  for (u32 r = 0; r < world.num_ranks(); ++r) {
    low_ranks.push_back(std::make_unique<LowLatencyRank>(world, r, low));
    high_ranks.push_back(std::make_unique<ThroughputRank>(world, r, high));
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  u64 first = 0;
  do {
    world.run([&](u32 me) {
      for (u64 round = first; round < first + kBatch; ++round) {
        low_latency_round(world, *low_ranks[me], low, round, me);
        throughput_round(world, *high_ranks[me], high, round, me);
      }
    });
    first += kBatch;
    keep();
    footprints.push_back(take_footprint());
  } while (std::chrono::steady_clock::now() < end || footprints.size() < kLeastBatches);
  check_growth(footprints);
  for (u32 r = 0; r < world.num_ranks(); ++r) {
    CHECK(!world.aborted(r));
    for (const WorkerCounters& c : world.worker_counters(r)) CHECK_EQ(c.refused, 0u);
  }
  return first;
}

}  // namespace

TEST(soak_mixes_both_modes_over_two_nodes) { CHECK(soak({0, 0, 1, 1}, soak_seconds()) >= kBatch); }

TEST(soak_sees_what_is_kept) {
  std::vector<int> descriptors;
  std::vector<std::unique_ptr<u8[]>> memory;
  CHECK_THROWS(check::Failure,
               soak({0, 1}, 0.01, [&] { descriptors.push_back(open("/dev/null", O_RDONLY | O_CLOEXEC)); }));
  CHECK_THROWS(check::Failure, soak({0, 1}, 0.01, [&] { memory.push_back(std::make_unique<u8[]>(kHeapNoise)); }));
  CHECK(descriptors.size() >= kLeastBatches && memory.size() >= kLeastBatches);
  for (const int fd : descriptors) close(fd);
  soak({0, 1}, 0.01);
}

TEST(soak_mixes_both_modes_over_uneven_nodes) { CHECK(soak({0, 1, 1}, soak_seconds()) >= kBatch); }

}  // namespace uccl::testing
