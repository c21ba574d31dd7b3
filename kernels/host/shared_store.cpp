// See shared_store.h.
#include "kernels/host/shared_store.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "kernels/host/copy_out.h"

namespace uccl::simt::host {
namespace {

void copy(bool past, u8* dst, const u8* src, u64 bytes) {
  if (past)
    copy_out(dst, src, bytes);
  else
    std::memcpy(dst, src, bytes);
}

}  // namespace

StoreChoice::Turn StoreChoice::next() {
  if (row_ == kPeriod) decide();
  const u32 row = row_++;
  return Turn{past_ != (row % kOtherEvery == 0), row % kTimedEvery == 0};
}

void StoreChoice::took(bool past, u64 cost) { least_[past] = std::min(least_[past], cost); }

void StoreChoice::decide() {
  past_ = least_[0] / kClearly > least_[1];
  row_ = 0;
  least_[0] = least_[1] = ~0ull;
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
