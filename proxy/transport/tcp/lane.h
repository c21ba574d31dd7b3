// A lane of tcp: one connection per peer, one epoll instance, one epoll_wait per poll whatever the number of peers.
#pragma once
#include <memory>
#include <vector>

#include "transport/judging_lane.h"
#include "transport/peer_ring.h"
#include "transport/tcp/connection.h"
#include "transport/transport.h"

namespace uccl {

class TcpLane final : public JudgingLane {
 public:
  TcpLane(const TransportSettings& settings, const TcpTuning& tuning);
  ~TcpLane() override;  // peers see kLost, code 0

  // Control path: takes a proven connection.
  void attach(u32 peer, Socket socket, u32 peer_window);

  void flush() override;
  std::size_t poll_completions(std::span<u64> wr_ids) override;
  std::size_t poll_arrivals(std::span<Arrival> out) override;  // moves everything: reads, acknowledges, sends the rest
  std::size_t poll_events(std::span<PeerEvent> out) override;

 private:
  std::size_t take(std::span<const WriteRequest> requests) override;
  void part(u32 peer, u32 farewell) override;
  void wait_events();
  void receive(u32 peer);
  void send(u32 peer);
  void send_acks();
  std::size_t take_ready(std::span<Arrival> out);

  AddressSpace local_;
  const TcpTuning tuning_;
  const u32 max_in_flight_;
  Socket epoll_;
  std::vector<std::unique_ptr<TcpConnection>> connections_;  // by rank; null = never connected
  TcpInbox inbox_;
  PeerRing readable_, unsent_, unacked_, completed_;
  u32 num_blocked_ = 0;  // connections whose socket was full
  u32 skipped_waits_ = 0;
};

}  // namespace uccl
