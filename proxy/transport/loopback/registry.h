// Where the ranks of one process find each other: (session, rank) -> endpoint. Control path only.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "transport/loopback/link.h"
#include "transport/transport.h"

namespace uccl {

// The receiving ends of a rank. Kept alive by its peers too, so a link never disappears under its other side.
struct LoopbackEndpoint {
  explicit LoopbackEndpoint(const TransportSettings& s);
  LoopbackLink& inbound(u32 source, u32 lane) { return *links[static_cast<std::size_t>(source) * num_lanes + lane]; }

  u32 rank, num_ranks, num_lanes;
  u64 session;
  std::string secret;
  std::vector<std::unique_ptr<LoopbackLink>> links;  // by source * num_lanes + lane
  std::vector<bool> joined;  // peers that have found this endpoint; guarded by the registry's mutex
};

// Throws std::runtime_error when that rank of that session exists already.
void loopback_register(const std::shared_ptr<LoopbackEndpoint>& endpoint);
void loopback_unregister(const LoopbackEndpoint& endpoint);

// Finds every rank in `wanted` and waits until each has found `self`. Result by rank, null where not wanted.
// Throws std::runtime_error naming the ranks that are missing at the deadline or that differ in secret or shape.
std::vector<std::shared_ptr<LoopbackEndpoint>> loopback_join(const std::shared_ptr<LoopbackEndpoint>& self,
                                                             const std::vector<bool>& wanted,
                                                             std::chrono::steady_clock::time_point deadline);

}  // namespace uccl
