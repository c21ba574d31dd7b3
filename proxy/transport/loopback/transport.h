// Ranks as threads of one process: for tests, and for a group that lives in one process.
#pragma once
#include <memory>
#include <vector>

#include "transport/loopback/lane.h"
#include "transport/transport.h"

namespace uccl {

class LoopbackTransport final : public Transport {
 public:
  explicit LoopbackTransport(const TransportSettings& settings);
  ~LoopbackTransport() override;

  const char* family() const override { return "loopback"; }
  std::string local_address() override;
  void connect(const std::vector<std::string>& addresses) override;
  Lane& lane(u32 index) override { return *lanes_.at(index); }

 private:
  TransportSettings settings_;
  std::shared_ptr<LoopbackEndpoint> endpoint_;
  std::vector<std::unique_ptr<LoopbackLane>> lanes_;
  bool connected_ = false;
};

}  // namespace uccl
