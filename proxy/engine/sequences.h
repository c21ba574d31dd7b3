// Per-channel order: the tail of (direction, source, channel) is the number of chunks that have arrived without a gap;
// credits are the other way round, the reader's head as its sender sees it.
//
// The wire carries the low bits of absolute numbers. A sender keeps fewer than kMaxSequenceInFlight chunks of a channel
// in flight, so what is further ahead than that cannot be told from the past and is dropped as stale.
#pragma once
#include <cstdlib>
#include <memory>

#include "engine/counters.h"
#include "engine/verdict.h"
#include "wire/control.h"

namespace uccl {

class Sequences {
 public:
  // Goes on from the tails and credits that `control` holds. Counts parked chunks and the deepest reorder.
  Sequences(u8* control, const ControlLayout& layout, WorkerCounters& counters);

  Verdict chunk(u32 source, u32 key);
  Verdict credit(u32 source, u32 key);

 private:
  static constexpr u32 kWords = kMaxSequenceInFlight / 64;
  struct Stream {
    u64 next;  // chunks applied, which is the number of the chunk that comes next
    u64 bits[kWords];  // chunk n waits: bit n % kMaxSequenceInFlight
    u64 waiting;
  };
  struct Free {
    void operator()(Stream* p) const { std::free(p); }
  };
  bool test(const Stream& s, u64 n) const { return s.bits[n / 64 % kWords] >> (n % 64) & 1; }
  static void flip(Stream& s, u64 n) { s.bits[n / 64 % kWords] ^= 1ull << (n % 64); }

  u8* control_;
  ControlLayout layout_;
  WorkerCounters& counters_;
  // From calloc: zero pages that a worker never touches (streams of other workers) cost no memory.
  std::unique_ptr<Stream[], Free> streams_;
};

}  // namespace uccl
