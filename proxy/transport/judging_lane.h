// What the lanes of every family have alike: a book of their peers, counters, and the one `post` that judges a request.
// A family says how it takes requests that were judged good, and how it parts with a peer.
#pragma once
#include "transport/peer_book.h"
#include "transport/transport.h"

namespace uccl {

class JudgingLane : public Lane {
 public:
  std::size_t post(std::span<const WriteRequest> requests) final {
    return book_.num_good(requests) == requests.size() ? take(requests) : post_some(requests);
  }
  void close_peer(u32 peer) final {
    if (peer >= book_.num_ranks()) return;
    if (book_.is_open(peer)) part(peer, 0);
    book_.close(peer);
  }
  std::size_t poll_events(std::span<PeerEvent> out) override { return book_.take_events(out); }
  const LaneCounters& counters() const final { return counters_; }

 protected:
  explicit JudgingLane(u32 num_ranks) : book_(num_ranks) {}

  // Takes as many of `requests`, from the front, as the lane has room for; returns how many. Each was judged good. A
  // family whose `take` may end a peer looks at each request's peer once more, and drops what is to one that has ended.
  virtual std::size_t take(std::span<const WriteRequest> requests) = 0;

  // Ends both directions with a peer that was open; it will report kLost with the code `farewell`, if it can be told.
  virtual void part(u32 peer, u32 farewell) = 0;

  // A request that no engine should have posted. The peer did nothing wrong: both sides end the connection.
  void refuse(u32 peer, int code) {
    ++counters_.refused;
    lose(peer, PeerFault::kProtocol, code, EPROTO);
  }
  // The peer's first fault ends the connection.
  void lose(u32 peer, PeerFault fault, int code, u32 farewell) {
    if (peer >= book_.num_ranks()) return;
    const bool was_open = book_.is_open(peer);
    if (book_.fail(peer, fault, code) && was_open) part(peer, farewell);
  }

  PeerBook book_;
  LaneCounters counters_;

 private:
  std::size_t post_some(std::span<const WriteRequest> requests);  // where not every request is good
};

}  // namespace uccl
