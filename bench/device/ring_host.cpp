// ring_host.h for Python's ctypes: one shared library that device_check compiles where it runs. No call raises; those
// that wait have the timeout of their plan.
#include "bench/device/ring_host.h"

using namespace uccl;

#define UCCL_BENCH_CALL extern "C" __attribute__((visibility("default")))

// Sizes of the structs, so that Python's copies of them are checked before they are used.
UCCL_BENCH_CALL void bench_sizes(u64* sizes) {
  const u64 all[] = {sizeof(RingBenchArgs),         sizeof(ClockBenchArgs), sizeof(bench::ConsumerPlan),
                     sizeof(bench::ConsumerReport), sizeof(RingView),       sizeof(RingHeader)};
  for (const u64 size : all) *sizes++ = size;
}

UCCL_BENCH_CALL void* bench_consumers_start(const bench::ConsumerPlan* plan) { return new bench::Consumers(*plan); }

// 1 when every command came in time.
UCCL_BENCH_CALL int bench_consumers_join(void* consumers, bench::ConsumerReport* report) {
  const std::unique_ptr<bench::Consumers> owned(static_cast<bench::Consumers*>(consumers));
  return owned->join(report) ? 1 : 0;
}

UCCL_BENCH_CALL u64 bench_ask(u64* question, u128* answer, u64* samples, u64 rounds, u64 timeout_ns) {
  return bench::ask(question, answer, samples, rounds, timeout_ns);
}

// The kernels as host threads; both return when the work is done.
UCCL_BENCH_CALL void bench_produce_on_host(const RingBenchArgs* args, u32 warps, u32 threads) {
  std::vector<std::thread> all;
  std::atomic_ref<u64> refused(*args->refused);
  for (u32 t = 0; t < threads; ++t)
    all.emplace_back(
        [&, t] { refused.fetch_add(bench::produce_share(*args, warps, t, threads), std::memory_order_relaxed); });
  for (std::thread& thread : all) thread.join();
}

UCCL_BENCH_CALL void bench_answer_on_host(const ClockBenchArgs* args) { bench::answer_share(*args); }
