// The contract of transport.h over SRD on the fake fabric: with and without unsolicited writes, over two NICs.
#include <chrono>
#include <thread>

#include "native/check.h"
#include "proxy/transport/contract.h"
#include "proxy/transport/efa/fake_efa.h"
#include "transport/efa/transport.h"

using namespace uccl;
using contract::Shape;

namespace {

contract::Family usual() { return efa_test::on_fake({}); }
contract::Family unsolicited() { return efa_test::on_fake({}, efa_test::unsolicited()); }
contract::Family old() {  // an old library, two NICs
  efa_test::Device d;
  d.old_library = true;
  fake::Options o;
  o.num_devices = 2;
  o.seed = 3;
  return efa_test::on_fake(o, d, [](TransportSettings& s) { s.fabric.nics.push_back({"fake1", 1, -1}); });
}

}  // namespace

#define OVER_EFA(name, call)                  \
  TEST(transport_efa_##name) {                \
    const contract::Family f = usual();       \
    call;                                     \
  }                                           \
  TEST(transport_efa_old_##name) {            \
    const contract::Family f = old();         \
    call;                                     \
  }                                           \
  TEST(transport_efa_unsolicited_##name) {    \
    const contract::Family f = unsolicited(); \
    call;                                     \
  }

OVER_EFA(random_small_writes_of_two, contract::random_writes(f, Shape{.num_ranks = 2}, 2000, 64, 1))
OVER_EFA(random_writes_of_three_on_two_lanes,
         contract::random_writes(f, Shape{.num_ranks = 3, .num_lanes = 2}, 300, 3000, 2))
OVER_EFA(random_writes_of_five, contract::random_writes(f, Shape{.num_ranks = 5, .max_in_flight = 7}, 100, 9000, 3))
OVER_EFA(random_large_writes, contract::random_writes(f, Shape{.num_ranks = 2}, 60, 300000, 4))
OVER_EFA(window_of_one, contract::random_writes(f, Shape{.num_ranks = 2, .max_in_flight = 1}, 300, 100, 5))
OVER_EFA(zero_bytes, contract::zero_bytes(f))
OVER_EFA(largest_write, contract::largest_write(f))
OVER_EFA(full_queue, contract::full_queue(f))
OVER_EFA(lanes_do_not_mix, contract::lanes_do_not_mix(f))
OVER_EFA(close_peer, contract::close_peer(f))
OVER_EFA(peer_destroyed, contract::peer_destroyed(f))
OVER_EFA(last_words, contract::last_words(f))
OVER_EFA(out_of_bounds, contract::out_of_bounds(f))
OVER_EFA(refused_requests, contract::refused_requests(f))
OVER_EFA(connect_times_out, contract::connect_times_out(f))
OVER_EFA(connect_twice, contract::connect_twice(f))
OVER_EFA(stranger_rank, contract::stranger_rank(f))

TEST(transport_efa_refuses_a_device_that_cannot_write) {
  efa_test::Device d;
  d.caps = efadv::kCapsRdmaRead;
  const contract::Family f = efa_test::on_fake({}, d);
  auto segment = Segment::create("efa", 1 << 20);
  try {
    f.make(contract::settings_for(Shape{}, 0, *segment));
    CHECK(false);
  } catch (const std::runtime_error& e) { CHECK(std::string(e.what()).find("cannot write") != std::string::npos); }
}

// An EFA device refuses a write from whom it has no address handle for, and a rank makes its handles in connect().
TEST(transport_efa_a_late_rank_is_greeted_again) {
  const contract::Family f = usual();
  const Shape shape{.num_ranks = 2, .num_lanes = 3};
  std::vector<std::shared_ptr<Segment>> segments;
  std::vector<std::unique_ptr<Transport>> t;
  std::vector<std::string> addresses;
  for (u32 r = 0; r < 2; ++r) {
    segments.push_back(Segment::create("late", shape.region_bytes));
    t.push_back(f.make(contract::settings_for(shape, r, *segments.back())));
    addresses.push_back(t.back()->local_address());
  }
  std::string error;
  std::thread early([&] {
    try {
      t[0]->connect(addresses);
    } catch (const std::exception& e) { error = e.what(); }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  t[1]->connect(addresses);
  early.join();
  CHECK_EQ(error, std::string());
  CHECK_EQ(fake::Fabric::the().handles_.size(), 2u);  // one a NIC and peer's address, whatever lanes there are
}
