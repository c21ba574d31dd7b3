// When a lane looks after what nobody tells it: its NICs' events, and whether idle peers still live. By the clock, so that
// a lane whose worker naps or sleeps between turns does as much a second as one that never rests.
#pragma once
#include <algorithm>

#include "wire/types.h"

namespace uccl {

class Rounds {
 public:
  static constexpr u64 kLookNs = 10'000'000;  // between two looks: the kernel is asked for each NIC's events
  explicit Rounds(u64 probe_ns) : probe_ns_(probe_ns) {}

  // Whether it is time for a look.
  bool looks(u64 now_ns) {
    if (now_ns < next_look_ns_) return false;
    next_look_ns_ = now_ns + std::min(kLookNs, probe_ns_);
    return true;
  }
  // How many of `count` peers are to be asked now, so that each is asked once in `probe_ns`, spread over that time.
  u64 due(u64 now_ns, u64 count) {
    owed_ += std::min(now_ns - std::min(last_ns_, now_ns), probe_ns_) * count;
    last_ns_ = now_ns;
    const u64 n = std::min(owed_ / probe_ns_, count);
    owed_ -= n * probe_ns_;
    return n;
  }

 private:
  u64 probe_ns_, next_look_ns_ = 0, last_ns_ = ~0ull, owed_ = 0;
};

}  // namespace uccl
