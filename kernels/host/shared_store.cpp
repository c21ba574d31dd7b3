// See shared_store.h.
#include "kernels/host/shared_store.h"

#include <chrono>
#include <cstring>

#include "kernels/host/copy_out.h"

namespace uccl::simt::host {
namespace {

constexpr std::memory_order kRelaxed = std::memory_order_relaxed;

void copy(bool past, u8* dst, const u8* src, u64 bytes) {
  if (past)
    copy_out(dst, src, bytes);
  else
    std::memcpy(dst, src, bytes);
}

}  // namespace

StoreChoice::Turn StoreChoice::next() {
  if (row_.load(kRelaxed) == kPeriod) decide();
  const u32 row = row_.load(kRelaxed);
  row_.store(row + 1, kRelaxed);
  return Turn{past_.load(kRelaxed) != (row % kOtherEvery == 0), row % kTimedEvery == 0};
}

void StoreChoice::took(bool past, u64 cost) {
  if (cost < least_[past].load(kRelaxed)) least_[past].store(cost, kRelaxed);
}

void StoreChoice::decide() {
  past_.store(least_[0].load(kRelaxed) / kClearly > least_[1].load(kRelaxed), kRelaxed);
  row_.store(0, kRelaxed);
  for (std::atomic<u64>& least : least_) least.store(~0ull, kRelaxed);
}

void store_shared(u8* dst, const u8* src, u64 bytes) {
  static thread_local StoreChoice choice;
  if (bytes < kTimedRowBytes) {
    std::memcpy(dst, src, bytes);
    return;
  }
  const StoreChoice::Turn turn = choice.next();
  if (!turn.timed) return copy(turn.past, dst, src, bytes);
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  copy(turn.past, dst, src, bytes);
  const auto ns = static_cast<u64>(std::chrono::nanoseconds(Clock::now() - begin).count());
  choice.took(turn.past, ns * 1024 / bytes);
}

}  // namespace uccl::simt::host
