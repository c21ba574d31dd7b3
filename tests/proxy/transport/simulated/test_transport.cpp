// What the contract's tests do not say: profiles by seed, sessions of one shape, ranks that exist once.
#include <stdexcept>

#include "native/check.h"
#include "transport/simulated/transport.h"

namespace {

uccl::TransportSettings settings(uccl::u32 rank, uccl::u64 session) {
  uccl::TransportSettings s;
  s.rank = rank;
  s.num_ranks = 2;
  s.session = session;
  s.secret = std::string(32, 's');
  return s;
}

}  // namespace

TEST(simulated_transport_sessions_are_apart_and_ranks_exist_once) {
  using uccl::SimulatedTransport;
  SimulatedTransport a(settings(0, 90));
  CHECK_THROWS(std::runtime_error, SimulatedTransport(settings(0, 90)));
  SimulatedTransport other(settings(0, 91));
  auto larger = settings(1, 90);
  larger.num_lanes = 3;
  CHECK_THROWS(std::runtime_error, SimulatedTransport{larger});
  CHECK(a.local_address().find("simulated:") == 0);
}
