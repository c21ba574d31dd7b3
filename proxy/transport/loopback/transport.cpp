// Set-up and teardown of a loopback rank.
#include "transport/loopback/transport.h"

#include <unistd.h>

#include <chrono>
#include <stdexcept>

namespace uccl {

LoopbackTransport::LoopbackTransport(const TransportSettings& settings)
    : settings_(settings), endpoint_(std::make_shared<LoopbackEndpoint>(settings)) {
  for (u32 i = 0; i < settings_.num_lanes; ++i) lanes_.push_back(std::make_unique<LoopbackLane>(settings_, i));
  loopback_register(endpoint_);
}

LoopbackTransport::~LoopbackTransport() { loopback_unregister(*endpoint_); }  // the lanes then say goodbye

std::string LoopbackTransport::local_address() {
  return "loopback:" + std::to_string(getpid()) + ":" + std::to_string(settings_.rank);
}

void LoopbackTransport::connect(const std::vector<std::string>& addresses) {
  if (connected_) throw std::runtime_error("loopback: connect was called before");
  if (addresses.size() != settings_.num_ranks) {
    throw std::runtime_error("loopback: " + std::to_string(addresses.size()) + " addresses for " +
                             std::to_string(settings_.num_ranks) + " ranks");
  }
  std::vector<bool> wanted(settings_.num_ranks, false);
  for (u32 p = 0; p < settings_.num_ranks; ++p) {
    if (p == settings_.rank || addresses[p].empty()) continue;
    const std::string expected = "loopback:" + std::to_string(getpid()) + ":" + std::to_string(p);
    if (addresses[p] != expected) {
      throw std::runtime_error("loopback: rank " + std::to_string(p) + " is at '" + addresses[p] +
                               "', which is not in this process (expected '" + expected + "')");
    }
    wanted[p] = true;
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::nanoseconds(settings_.connect_timeout_ns);
  const auto endpoints = loopback_join(endpoint_, wanted, deadline);
  for (auto& lane : lanes_) lane->attach(endpoint_, endpoints);
  connected_ = true;
}

}  // namespace uccl
