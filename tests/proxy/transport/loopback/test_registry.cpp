// How ranks of one process find each other.
#include "native/check.h"
#include "transport/loopback/registry.h"

using namespace uccl;

namespace {

std::shared_ptr<LoopbackEndpoint> endpoint(u64 session, u32 rank, u32 lanes = 1) {
  TransportSettings s;
  s.session = session;
  s.rank = rank;
  s.num_ranks = 3;
  s.num_lanes = lanes;
  s.max_in_flight = 5;
  return std::make_shared<LoopbackEndpoint>(s);
}
std::chrono::steady_clock::time_point soon() {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(30);
}

std::string join_error(const std::shared_ptr<LoopbackEndpoint>& e, const std::vector<bool>& wanted) {
  try {
    loopback_join(e, wanted, soon());
  } catch (const std::runtime_error& x) { return x.what(); }
  return "";
}

}  // namespace

TEST(transport_loopback_registry_has_one_of_each_rank) {
  auto a = endpoint(900, 0);
  loopback_register(a);
  CHECK_THROWS(std::runtime_error, loopback_register(endpoint(900, 0)));
  loopback_register(endpoint(901, 0));  // another session; forgotten at once, because nobody holds it
  loopback_register(endpoint(901, 0));
  loopback_unregister(*a);
  auto b = endpoint(900, 0);
  loopback_register(b);
  loopback_unregister(*b);
}

TEST(transport_loopback_registry_join_needs_both_sides) {
  auto a = endpoint(902, 0), b = endpoint(902, 1);
  loopback_register(a);
  CHECK(join_error(a, {false, true, true}).find(" 1 2") != std::string::npos);
  loopback_register(b);
  CHECK(join_error(a, {false, true, false}).find(" 1") != std::string::npos);  // it has not joined us
  const auto found = loopback_join(b, {true, false, false}, soon());            // we have joined it
  CHECK(found[0] == a);
  CHECK(found[1] == nullptr);
  CHECK(loopback_join(a, {false, true, false}, soon())[1] == b);
  loopback_unregister(*a);
  loopback_unregister(*b);
}

TEST(transport_loopback_registry_join_refuses_another_shape) {
  auto a = endpoint(903, 0), b = endpoint(903, 1, 2);
  loopback_register(a);
  loopback_register(b);
  CHECK(join_error(a, {false, true, false}).find("2 lanes") != std::string::npos);
  loopback_unregister(*a);
  loopback_unregister(*b);
}
