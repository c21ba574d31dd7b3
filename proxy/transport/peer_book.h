// What a lane knows of each peer: not connected, open, lost or closed, and the events about it that wait to be polled.
// A peer has at most one event in its life. Used by the lane's own thread only.
#pragma once
#include <cerrno>
#include <span>
#include <vector>

#include "transport/transport.h"
#include "wire/limits.h"

namespace uccl {

enum class PeerState : u8 { kAbsent, kOpen, kLost, kClosed };

class PeerBook {
 public:
  explicit PeerBook(u32 num_ranks) : states_(num_ranks, PeerState::kAbsent), events_(num_ranks) {}

  PeerState state(u32 peer) const { return states_[peer]; }
  bool is_open(u32 peer) const { return states_[peer] == PeerState::kOpen; }
  void open(u32 peer) { states_[peer] = PeerState::kOpen; }

  // The first fault of a peer makes it lost and queues the event; false when it was lost or closed before.
  bool fail(u32 peer, PeerFault fault, int code) {
    if (states_[peer] == PeerState::kLost || states_[peer] == PeerState::kClosed) return false;
    states_[peer] = PeerState::kLost;
    events_[num_events_++] = PeerEvent{peer, fault, code};
    return true;
  }
  void close(u32 peer) { states_[peer] = PeerState::kClosed; }

  std::size_t take_events(std::span<PeerEvent> out) {
    std::size_t n = 0;
    while (n < out.size() && next_event_ < num_events_) {
      const PeerEvent& e = events_[next_event_++];
      if (states_[e.peer] != PeerState::kClosed) out[n++] = e;  // closed since: nobody asks any more
    }
    return n;
  }

  // What a lane does with a request before anything else. A request that no engine should have posted makes its peer
  // fail, because dropping it in silence would leave the receiver waiting for it.
  enum class Verdict { kPost, kDrop, kRefuse };
  Verdict judge(const WriteRequest& r, int* code) const {
    if (r.peer >= states_.size()) {
      *code = EINVAL;
      return Verdict::kRefuse;
    }
    if (states_[r.peer] == PeerState::kLost || states_[r.peer] == PeerState::kClosed) return Verdict::kDrop;
    *code = states_[r.peer] == PeerState::kAbsent ? ENOTCONN : r.bytes > kMaxWriteBytes ? EMSGSIZE : 0;
    return *code == 0 ? Verdict::kPost : Verdict::kRefuse;
  }

 private:
  std::vector<PeerState> states_;
  std::vector<PeerEvent> events_;  // one per peer at most, so it never wraps
  std::size_t num_events_ = 0, next_event_ = 0;
};

}  // namespace uccl
