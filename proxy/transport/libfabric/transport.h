// The libfabric family: RDMA writes with CQ data through any provider that has them.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "transport/libfabric/handshake.h"
#include "transport/transport.h"

namespace uccl {

struct LibfabricTuning {
  u64 max_piece = ~0ull;  // bytes; tests make it small. The provider's own limit always holds
};

class LibfabricTransport final : public Transport {
 public:
  // Opens the library, the provider, and an endpoint per lane; registers settings.local. Throws std::runtime_error.
  explicit LibfabricTransport(const TransportSettings& settings, const LibfabricTuning& tuning = {});
  const char* family() const override { return "libfabric"; }
  std::string local_address() override { return address_.text(); }
  void connect(const std::vector<std::string>& addresses) override;
  Lane& lane(u32 index) override { return *lanes_.at(index); }
  void admit(const Admission& wanted) override;
  std::vector<Note> notes() const override { return notes_; }
  const LibfabricHandshakeCounters& handshake_counters() const { return handshake_counters_; }

 private:
  void open_lanes(const std::string& device, const LibfabricTuning& tuning);
  void add_peer(u32 peer, const std::string& text);

  TransportSettings settings_;
  std::vector<Note> notes_;
  LibfabricAddress address_;
  struct Opened {
    ProviderLimits limits;
    std::shared_ptr<LibfabricDomain> domain;
  };
  std::vector<Opened> domains_;
  std::vector<std::unique_ptr<LibfabricLane>> lanes_;
  LibfabricHandshakeCounters handshake_counters_;
  bool connected_ = false;
};

}  // namespace uccl
