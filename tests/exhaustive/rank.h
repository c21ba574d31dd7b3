// One rank's control segment and settings for worlds that are explored: small, zeroed, and cheap to make again.
#pragma once
#include <array>
#include <cstdlib>
#include <memory>
#include <vector>

#include "engine/engine.h"
#include "engine/words.h"
#include "exhaustive/explore.h"
#include "wire/control.h"

namespace uccl::testing {

class ControlSegment {
 public:
  ControlSegment(u32 num_ranks, u32 num_channels)
      : layout{num_ranks, num_channels},
        memory_(static_cast<u8*>(std::aligned_alloc(4096, layout.bytes())), &std::free) {
    std::memset(memory_.get(), 0, layout.bytes());
  }
  u8* base() const { return memory_.get(); }
  u64 word(u64 offset) const { return read_word(control_word(base(), offset)); }
  void set_word(u64 offset, u64 value) { control_word(base(), offset) = value; }
  u64 flag(Phase p, u32 source) const { return word(layout.flag(p, source)); }
  // Everything but padding at the end.
  std::size_t used() const { return layout.progress(static_cast<Phase>(kNumPhases), 0); }

  const ControlLayout layout;

 private:
  std::unique_ptr<u8, void (*)(void*)> memory_;
};

// A lane that keeps what is posted until the explorer delivers it. `room` bounds what it takes before it says "full".
class HeldLane final : public Lane {
 public:
  std::size_t post(std::span<const WriteRequest> requests) override {
    std::size_t n = 0;
    for (; n < requests.size() && held.size() < room; ++n) held.push_back(requests[n]);
    return n;
  }
  void flush() override {}
  std::size_t poll_completions(std::span<u64>) override { return 0; }
  std::size_t poll_arrivals(std::span<Arrival>) override { return 0; }
  std::size_t poll_events(std::span<PeerEvent>) override { return 0; }
  void close_peer(u32) override {}
  const LaneCounters& counters() const override { return counters_; }

  std::vector<WriteRequest> held;
  std::size_t room = ~std::size_t{0};

 private:
  LaneCounters counters_;
};

}  // namespace uccl::testing
