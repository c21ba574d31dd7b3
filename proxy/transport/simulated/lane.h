// A lane of the simulated network: a name for (rank, lane) behind the contract. All state is the network's.
#pragma once
#include <memory>

#include "transport/simulated/network.h"
#include "transport/transport.h"

namespace uccl {

class SimulatedLane final : public Lane {
 public:
  SimulatedLane(std::shared_ptr<SimulatedNetwork> network, u32 end) : network_(std::move(network)), end_(end) {}
  ~SimulatedLane() override { network_->leave(end_); }  // peers see kLost, code 0

  std::size_t post(std::span<const WriteRequest> requests) override { return network_->post(end_, requests); }
  void flush() override {}  // a posted write has its times already
  std::size_t poll_completions(std::span<u64> wr_ids) override { return network_->poll_completions(end_, wr_ids); }
  std::size_t poll_arrivals(std::span<Arrival> out) override { return network_->poll_arrivals(end_, out); }
  std::size_t poll_events(std::span<PeerEvent> out) override { return network_->poll_events(end_, out); }
  void close_peer(u32 peer) override { network_->close_peer(end_, peer); }
  const LaneCounters& counters() const override { return network_->counters(end_); }

 private:
  std::shared_ptr<SimulatedNetwork> network_;
  u32 end_;
};

}  // namespace uccl
