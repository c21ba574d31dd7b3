// Set-up of tcp: listen when made, so that the address can travel; connect everything, then close the door.
#include "transport/tcp/transport.h"

#include <stdexcept>

namespace uccl {

TcpTransport::TcpTransport(const TransportSettings& settings, const TcpTuning& tuning)
    : settings_(settings), tuning_(tuning) {
  if (settings_.secret.size() != kSecretBytes) {
    throw std::invalid_argument("tcp: the secret has " + std::to_string(settings_.secret.size()) + " bytes, " +
                                std::to_string(kSecretBytes) + " are needed");
  }
  listener_ = tcp_listen(settings_.ip.interface_address, tuning_);
  address_ = tcp_local_address(listener_.fd());
  for (u32 i = 0; i < settings_.num_lanes; ++i) lanes_.push_back(std::make_unique<TcpLane>(settings_, tuning_));
}

void TcpTransport::connect(const std::vector<std::string>& addresses) {
  if (!listener_) throw std::runtime_error("tcp: connect was called before");
  if (addresses.size() != settings_.num_ranks) {
    throw std::runtime_error("tcp: " + std::to_string(addresses.size()) + " addresses for " +
                             std::to_string(settings_.num_ranks) + " ranks");
  }
  const Socket listener = std::move(listener_);  // closed on every way out
  TcpHandshake handshake(settings_, tuning_, listener, addresses);
  std::vector<TcpHandshake::Proven> proven;
  try {
    proven = handshake.run();
  } catch (...) {
    handshake_counters_ = handshake.counters();
    throw;
  }
  handshake_counters_ = handshake.counters();
  if (const u64 n = handshake_counters_.dropped(); n != 0) {
    notes_.push_back({"tcp: " + std::to_string(n) + " connection(s) of strangers dropped",
                      "they did not prove that they know the session's secret"});
  }
  for (u32 p = 0; p < settings_.num_ranks; ++p) {
    for (u32 lane = 0; lane < settings_.num_lanes; ++lane) {
      TcpHandshake::Proven& c = proven[static_cast<std::size_t>(p) * settings_.num_lanes + lane];
      if (c.socket) lanes_[lane]->attach(p, std::move(c.socket), c.peer_window);
    }
  }
}

}  // namespace uccl
