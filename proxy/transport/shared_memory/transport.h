// Ranks as processes (or threads) of one host. The death of a peer is not seen here: the engine watches its pid.
#pragma once
#include <chrono>
#include <memory>
#include <vector>

#include "memory/segment.h"
#include "transport/shared_memory/address.h"
#include "transport/shared_memory/lane.h"
#include "transport/shared_memory/mailbox.h"
#include "transport/transport.h"

namespace uccl {

class SharedMemoryTransport final : public Transport {
 public:
  explicit SharedMemoryTransport(const TransportSettings& settings);

  const char* family() const override { return "shared_memory"; }
  std::string local_address() override;
  void connect(const std::vector<std::string>& addresses) override;
  Lane& lane(u32 index) override { return *lanes_.at(index); }

 private:
  struct PeerMemory {
    std::shared_ptr<Segment> mailbox;
    MailboxLayout layout;
    std::vector<std::shared_ptr<Segment>> segments;
    AddressSpace space;
  };

  std::unique_ptr<PeerMemory> map_peer(u32 peer, const std::string& address) const;
  void check_header(u32 peer, const MailboxHeader& header, u32 capacity) const;
  void wait_for_hellos(std::chrono::steady_clock::time_point deadline) const;

  TransportSettings settings_;
  MailboxLayout layout_;
  std::shared_ptr<Segment> mailbox_;
  std::vector<std::unique_ptr<PeerMemory>> peers_;  // by rank; null = not connected
  std::vector<std::unique_ptr<SharedMemoryLane>> lanes_;  // after peers_: a lane's last words need the mappings
  bool connected_ = false;
};

}  // namespace uccl
