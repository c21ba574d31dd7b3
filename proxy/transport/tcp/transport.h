// Ranks on any hosts that reach each other by tcp. Small messages leave in batches, large ones without a copy of ours.
#pragma once
#include <memory>
#include <vector>

#include "transport/tcp/handshake.h"
#include "transport/tcp/lane.h"
#include "transport/tcp/socket.h"
#include "transport/transport.h"

namespace uccl {

class TcpTransport final : public Transport {
 public:
  explicit TcpTransport(const TransportSettings& settings, const TcpTuning& tuning = {});

  const char* family() const override { return "tcp"; }
  std::string local_address() override { return address_; }
  // The listener closes when this returns: nobody joins later.
  void connect(const std::vector<std::string>& addresses) override;
  Lane& lane(u32 index) override { return *lanes_.at(index); }
  std::vector<Note> notes() const override { return notes_; }

  // Who was dropped during connect(); valid after it returned or threw.
  const TcpHandshakeCounters& handshake_counters() const { return handshake_counters_; }

 private:
  const TransportSettings settings_;
  const TcpTuning tuning_;
  Socket listener_;
  std::string address_;
  std::vector<std::unique_ptr<TcpLane>> lanes_;
  TcpHandshakeCounters handshake_counters_;
  std::vector<Note> notes_;
};

}  // namespace uccl
