// What came of one immediate.
#pragma once
#include "wire/types.h"

namespace uccl {

enum class Outcome : u32 {
  kApplied,
  kStale,    // of another life of the buffer, or here already: dropped and counted
  kOvertaken,  // a credit behind a newer one, on a network that keeps no order: it says nothing new
  kRefused,  // no correct peer sends it: a fault (expected, seen)
};

struct Verdict {
  Outcome outcome = Outcome::kApplied;
  u64 expected = 0;
  u64 seen = 0;
  u64 arriving_ns = 0;  // of the calls whose flag it raised: how long ago their first sign was, added up
  i64 parked = 0;       // how many more arrivals of its sender now wait for their turn than before
};

}  // namespace uccl
