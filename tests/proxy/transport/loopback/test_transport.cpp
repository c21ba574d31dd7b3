// Set-up of loopback: addresses of elsewhere, a session that is used again.
#include "native/check.h"
#include "proxy/transport/contract.h"
#include "transport/loopback/transport.h"

using namespace uccl;

TEST(transport_loopback_refuses_an_address_of_another_process) {
  TransportSettings s;
  s.num_ranks = 2;
  s.session = 950;
  LoopbackTransport t(s);
  CHECK_THROWS(std::runtime_error, t.connect({"", "loopback:1:1"}));
  CHECK_THROWS(std::runtime_error, t.connect({"", "127.0.0.1:80"}));
}

TEST(transport_loopback_session_can_be_used_again) {
  const contract::Family f{"loopback", [](const TransportSettings& s) { return make_transport("loopback", s); }};
  for (int i = 0; i < 3; ++i) {
    contract::Group g(f, contract::Shape{});
    const WriteRequest r{1, 5, contract::random_bytes(), g.kBase, 8, 9};
    CHECK_EQ(g.lane(0).post(std::span(&r, 1)), 1u);
    Arrival a[2];
    CHECK_EQ(g.lane(1).poll_arrivals(a), 1u);
  }
}
