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

  u32 num_ranks() const { return static_cast<u32>(states_.size()); }
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

  // How many of `requests`, from the front, may be posted: their peers are open and their lengths allowed.
  std::size_t num_good(std::span<const WriteRequest> requests) const {
    std::size_t n = 0;
    while (n < requests.size() && verdict(requests[n]) == 0) ++n;
    return n;
  }

  // What a lane does with requests before anything else; returns how many it is done with, from the front. Good ones go
  // to `take`, run by run, which returns how many of them it had room for. One to a peer that is gone is dropped. One that
  // no engine should have posted goes to `refuse` with an errno, and its peer fails there: dropping it in silence would
  // leave the receiver waiting for it.
  template <class Take, class Refuse>
  std::size_t judge(std::span<const WriteRequest> requests, Take take, Refuse refuse) const {
    for (std::size_t n = 0;; ++n) {
      const std::size_t good = num_good(requests.subspan(n));
      const std::size_t taken = take(requests.subspan(n, good));
      n += taken;
      if (taken != good || n == requests.size()) return n;
      const int code = verdict(requests[n]);
      if (code > 0) refuse(requests[n].peer, code);
    }
  }

 private:
  static constexpr int kDropped = -1;
  // 0: good; else kDropped, or the errno with which the request is refused.
  int verdict(const WriteRequest& r) const {
    if (r.peer >= states_.size()) return EINVAL;
    if (states_[r.peer] == PeerState::kLost || states_[r.peer] == PeerState::kClosed) return kDropped;
    return states_[r.peer] == PeerState::kAbsent ? ENOTCONN : r.bytes > kMaxWriteBytes ? EMSGSIZE : 0;
  }

  std::vector<PeerState> states_;
  std::vector<PeerEvent> events_;  // one per peer at most, so it never wraps
  std::size_t num_events_ = 0, next_event_ = 0;
};

}  // namespace uccl
