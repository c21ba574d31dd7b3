// A lane between threads of one process. With a shuffle seed the receiver delivers in a random order, so that tests
// meet every order that the transport contract allows.
#pragma once
#include <memory>
#include <vector>

#include "transport/judging_lane.h"
#include "transport/loopback/link.h"
#include "transport/loopback/registry.h"
#include "transport/transport.h"

namespace uccl {

class LoopbackLane final : public JudgingLane {
 public:
  LoopbackLane(const TransportSettings& settings, u32 index);
  ~LoopbackLane() override;  // peers see kLost, code 0

  // Control path: `endpoints` by rank, null where not connected; `self` holds the inbound links.
  void attach(const std::shared_ptr<LoopbackEndpoint>& self,
              const std::vector<std::shared_ptr<LoopbackEndpoint>>& endpoints);

  void flush() override {}  // a pushed request is already where the receiver looks
  std::size_t poll_completions(std::span<u64> wr_ids) override;
  std::size_t poll_arrivals(std::span<Arrival> out) override;
  std::size_t poll_events(std::span<PeerEvent> out) override;

 private:
  struct Peer {
    u32 rank;
    LoopbackLink* in;
    LoopbackLink* out;
    u32 limit;     // writes that may be open
    u32 open = 0;  // posted, and its wr_id not yet handed to poll_completions' caller
  };
  struct Held {  // shuffle: taken from its queue, not yet delivered
    Peer* peer;
    LoopbackRequest request;
    u32 polls;
  };
  struct HeldWrId {
    Peer* peer;
    u64 wr_id;
    u32 polls;
  };

  std::size_t take(std::span<const WriteRequest> requests) override;
  void part(u32 peer, u32 farewell) override;
  void notice_closed(Peer& peer);
  bool deliver(Peer& peer, const LoopbackRequest& request, Arrival* out);
  std::size_t poll_in_order(std::span<Arrival> out);
  std::size_t poll_shuffled(std::span<Arrival> out);
  std::size_t wr_ids_in_order(std::span<u64> wr_ids);
  std::size_t wr_ids_shuffled(std::span<u64> wr_ids);
  u64 random();

  u32 index_;
  AddressSpace local_;
  u32 max_in_flight_;
  u64 random_state_;  // 0 = in order
  std::size_t turn_ = 0;  // peer that is served first, so that none starves
  std::vector<Peer> peers_;
  std::vector<Peer*> by_rank_;
  std::vector<Held> held_;             // room for everything that can be in flight
  std::vector<HeldWrId> held_wr_ids_;
  std::shared_ptr<LoopbackEndpoint> self_;
  std::vector<std::shared_ptr<LoopbackEndpoint>> endpoints_;  // keep the links alive
};

}  // namespace uccl
