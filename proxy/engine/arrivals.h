// Partial completion: the flag of (phase, source) becomes epoch e when the N writes that the sender announced for e
// have arrived, in whatever order writes, announcement and neighbouring epochs come.
//
// A write of epoch e may overtake everything of e - 1, so counters of kEpochWindow epochs are kept. An epoch is
// published only after the one before it; what belongs to a published epoch is stale and never counts. Announcements
// also carry what their sender has finished reading, which goes to the `consumed` words. The `progress` words say, for
// reports, how much of the next epoch is here.
#pragma once
#include <vector>

#include "diag/event_ring.h"
#include "engine/verdict.h"
#include "wire/control.h"

namespace uccl {

class Arrivals {
 public:
  // Two buffer sets let a sender be two epochs ahead of its slowest reader; twice that is never needed.
  static constexpr u32 kEpochWindow = 4;

  // Goes on from the flags that `control` holds.
  Arrivals(u8* control, const ControlLayout& layout, EventLog events = {});

  // `source` is a rank of the group; `now_ns` stamps a flag that is raised.
  Verdict arrive(u32 source, u32 key, u64 now_ns);
  Verdict expect(u32 source, u32 key, u64 now_ns);  // its ExpectHeader is visible
  // Goes on from the `resume` words of a rank that missed calls: what it sent, or was sent, before will never be whole.
  void resume(u32 source, u64 now_ns);

 private:
  static constexpr u64 kUnknown = ~0ull;
  struct Epoch {
    u64 counted = 0;
    u64 expected = kUnknown;
    u64 first_ns = 0;  // when the first write or the announcement was taken
  };
  struct Counter {
    u64 published = 0;
    Epoch window[kEpochWindow];
  };
  Counter& at(u32 source, u32 key) { return counters_[static_cast<u32>(key_phase(key)) * layout_.num_ranks + source]; }
  Verdict place(const Counter& counter, u32 key, u64* epoch) const;
  u64 settle(Counter& counter, u64 epoch, u32 source, Phase phase, u64 now_ns);
  u64 publish(Counter& counter, u32 source, Phase phase, u64 now_ns);

  u8* control_;
  ControlLayout layout_;
  std::vector<Counter> counters_;
  EventLog events_;
};

}  // namespace uccl
