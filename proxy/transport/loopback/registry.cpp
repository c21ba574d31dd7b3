// The in-process meeting point of loopback ranks. One mutex, one condition variable, both on the control path.
#include "transport/loopback/registry.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace uccl {
namespace {

struct Registry {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<u64, u32>, std::weak_ptr<LoopbackEndpoint>> endpoints;
};
Registry& registry() {
  static Registry r;
  return r;
}

std::string difference(const LoopbackEndpoint& self, const LoopbackEndpoint& peer) {
  if (peer.secret != self.secret) return "has another secret";
  if (peer.num_ranks != self.num_ranks) return "says " + std::to_string(peer.num_ranks) + " ranks";
  if (peer.num_lanes != self.num_lanes) return "says " + std::to_string(peer.num_lanes) + " lanes";
  return "";
}

// Called with the mutex held. True when every wanted rank is found and has found `self`.
bool meet(LoopbackEndpoint& self, const std::vector<bool>& wanted,
          std::vector<std::shared_ptr<LoopbackEndpoint>>& found, std::string& missing) {
  missing.clear();
  for (u32 p = 0; p < self.num_ranks; ++p) {
    if (!wanted[p]) continue;
    if (!found[p]) {
      const auto it = registry().endpoints.find({self.session, p});
      auto peer = it == registry().endpoints.end() ? nullptr : it->second.lock();
      if (peer) {
        const std::string d = difference(self, *peer);
        if (!d.empty()) {
          throw std::runtime_error("loopback: rank " + std::to_string(self.rank) + ": rank " + std::to_string(p) + " " +
                                   d);
        }
        peer->joined[self.rank] = true;
        found[p] = std::move(peer);
        registry().changed.notify_all();
      }
    }
    if (!found[p] || !self.joined[p]) missing += " " + std::to_string(p);
  }
  return missing.empty();
}

}  // namespace

LoopbackEndpoint::LoopbackEndpoint(const TransportSettings& s)
    : rank(s.rank),
      num_ranks(s.num_ranks),
      num_lanes(s.num_lanes),
      session(s.session),
      secret(s.secret),
      joined(s.num_ranks, false) {
  const std::size_t n = static_cast<std::size_t>(num_ranks) * num_lanes;
  links.reserve(n);
  for (std::size_t i = 0; i < n; ++i) links.push_back(std::make_unique<LoopbackLink>(s.max_in_flight));
}

void loopback_register(const std::shared_ptr<LoopbackEndpoint>& endpoint) {
  std::lock_guard lock(registry().mutex);
  auto& entry = registry().endpoints[{endpoint->session, endpoint->rank}];
  if (entry.lock()) {
    throw std::runtime_error("loopback: rank " + std::to_string(endpoint->rank) + " of session " +
                             std::to_string(endpoint->session) + " exists already in this process");
  }
  entry = endpoint;
}

void loopback_unregister(const LoopbackEndpoint& endpoint) {
  std::lock_guard lock(registry().mutex);
  registry().endpoints.erase({endpoint.session, endpoint.rank});
}

std::vector<std::shared_ptr<LoopbackEndpoint>> loopback_join(const std::shared_ptr<LoopbackEndpoint>& self,
                                                             const std::vector<bool>& wanted,
                                                             std::chrono::steady_clock::time_point deadline) {
  std::vector<std::shared_ptr<LoopbackEndpoint>> found(self->num_ranks);
  std::string missing;
  std::unique_lock lock(registry().mutex);
  while (!meet(*self, wanted, found, missing)) {
    const bool late = registry().changed.wait_until(lock, deadline) == std::cv_status::timeout;
    if (late && !meet(*self, wanted, found, missing)) {
      throw std::runtime_error("loopback: rank " + std::to_string(self->rank) + " waited in vain for rank(s)" +
                               missing);
    }
  }
  return found;
}

}  // namespace uccl
