// Families by name, and settings that make no sense.
#include <functional>

#include "native/check.h"
#include "transport/transport.h"
#include "wire/limits.h"

using namespace uccl;

namespace {

std::string refusal(const std::string& family, const std::function<void(TransportSettings&)>& change) {
  TransportSettings s;
  s.num_ranks = 2;
  s.secret = std::string(32, 'x');
  s.session = 4711;
  change(s);
  try {
    make_transport(family, s);
  } catch (const std::invalid_argument& e) { return e.what(); }
  return "";
}

}  // namespace

TEST(transport_registry_knows_its_families) {
  for (const std::string family : {"loopback", "shared_memory", "simulated", "tcp"}) {
    CHECK_EQ(refusal(family, [](TransportSettings&) {}), std::string());
    TransportSettings s;
    s.secret = std::string(32, 'x');
    auto t = make_transport(family, s);
    CHECK_EQ(std::string(t->family()), family);
    t->connect({""});  // a group of one has nobody to connect to
    CHECK_THROWS(std::out_of_range, t->lane(1));
  }
  const std::string e = refusal("ucx", [](TransportSettings&) {});
  for (const char* name : {"'ucx'", "efa", "loopback", "shared_memory", "simulated", "tcp", "verbs"})
    CHECK(e.find(name) != std::string::npos);
}

TEST(transport_registry_refuses_impossible_settings) {
  const std::function<void(TransportSettings&)> wrong[] = {
      [](TransportSettings& s) { s.num_ranks = 0; },
      [](TransportSettings& s) { s.num_ranks = kMaxRanks + 1; },
      [](TransportSettings& s) { s.rank = 2; },
      [](TransportSettings& s) { s.num_lanes = 0; },
      [](TransportSettings& s) { s.num_lanes = 257; },
      [](TransportSettings& s) { s.max_in_flight = 0; },
      [](TransportSettings& s) { s.max_in_flight = (1u << 16) + 1; },
  };
  for (const auto& change : wrong) CHECK(!refusal("loopback", change).empty());
  CHECK_EQ(refusal("tcp", [](TransportSettings& s) { s.max_in_flight = 1u << 16; }), std::string());
  CHECK(refusal("tcp", [](TransportSettings& s) { s.secret = "short"; }).find("5 bytes") != std::string::npos);
  const std::string e = refusal("tcp", [](TransportSettings& s) { s.ip.interface_address = "0.0.0.0"; });
  CHECK(e.find("every") != std::string::npos);
  CHECK(!refusal("shared_memory", [](TransportSettings& s) { s.shared_memory.span_fds = {1}; }).empty());
}
