// Ranks of one process over a simulated network that drives itself: every poll that finds nothing moves its time on.
// (A simulation drives a network of its own, network.h.)
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "transport/simulated/lane.h"
#include "transport/transport.h"

namespace uccl {

class SimulatedTransport final : public Transport {
 public:
  // `shuffle_seed` 0: profile "rc"; else "srd", drawn from it.
  explicit SimulatedTransport(const TransportSettings& settings);
  ~SimulatedTransport() override;

  const char* family() const override { return "simulated"; }
  std::string local_address() override;
  void connect(const std::vector<std::string>& addresses) override;
  Lane& lane(u32 index) override { return *lanes_.at(index); }

 private:
  struct Meeting;  // the ranks of one session
  static std::shared_ptr<Meeting> meeting_of(const TransportSettings& settings);

  TransportSettings settings_;
  std::shared_ptr<Meeting> meeting_;
  std::vector<std::unique_ptr<SimulatedLane>> lanes_;
  bool connected_ = false;
};

}  // namespace uccl
