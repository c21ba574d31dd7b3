// Which peers are still talked to. One word a peer, written by whoever learns something (a worker's transport event,
// the process watch, Python), read by every worker, which then closes the peer on its own lane.
#pragma once
#include <atomic>
#include <memory>

#include "engine/faults.h"

namespace uccl {

enum class PeerFault : u32;  // transport/transport.h

class Membership {
 public:
  Membership(u32 num_ranks, PeerCounters* peers, Faults& faults);

  // The peer's process or connection ended, or it broke the protocol. The first report of a peer that was not
  // dismissed raises a fault; every other one is silent.
  void lose(u32 peer, PeerFault fault, int code) noexcept;
  // The peer's end is expected from now on.
  void dismiss(u32 peer) noexcept;

  bool gone(u32 peer) const { return states_[peer].load(std::memory_order_acquire) != 0; }
  // Grows after every change; acquire pairs with the release in `changed`, so whoever sees the new version sees the
  // states behind it.
  u64 version() const { return version_.load(std::memory_order_acquire); }
  u32 num_ranks() const { return num_ranks_; }

 private:
  static constexpr u8 kLost = 1, kDismissed = 2;
  void changed() { version_.fetch_add(1, std::memory_order_release); }

  u32 num_ranks_;
  PeerCounters* peers_;
  Faults& faults_;
  std::unique_ptr<std::atomic<u8>[]> states_;
  std::atomic<u64> version_{0};
};

}  // namespace uccl
