// An EFA lane's own rules: a request that was cut keeps its immediate for last although pieces arrive in any order, an
// error touches one peer only, and who is not known is not believed.
#include <chrono>
#include <cstring>
#include <thread>

#include "native/check.h"
#include "proxy/transport/contract.h"
#include "proxy/transport/efa/fake_efa.h"
#include "transport/efa/lane.h"
#include "transport/verbs/errors.h"

using namespace uccl;

TEST(transport_efa_lane_a_cut_request_is_told_of_after_all_its_pieces) {
  for (u64 seed = 1; seed <= 20; ++seed) {
    fake::Options o;
    o.seed = seed;
    o.steps = 1;
    efa_test::Device d;
    d.largest = 10000;  // 300 kB: 30 pieces, cut at chunk borders as well
    VerbsTuning tuning;
    tuning.chunk_bytes = 64 << 10;
    const contract::Family f = efa_test::on_fake(o, d, {}, tuning);
    contract::Shape shape;
    contract::Group g(f, shape);
    const u64 bytes = 300000 + seed;
    const WriteRequest r{1, 7, contract::random_bytes() + seed, g.kBase + 3 * seed, bytes, 5};
    CHECK_EQ(g.lane(0).post(std::span(&r, 1)), 1u);
    g.lane(0).flush();
    Arrival a{};
    CHECK(contract::poll_until([&] {
      u64 wr_id;
      g.lane(0).poll_completions(std::span(&wr_id, 1));
      return g.lane(1).poll_arrivals(std::span(&a, 1)) == 1;
    }));
    CHECK_EQ(a.immediate, 7u);
    CHECK(std::memcmp(g.memory(1) + 3 * seed, r.source, bytes) == 0);
  }
}

TEST(transport_efa_lane_a_lost_peer_takes_nobody_along) {
  fake::Options o;
  o.num_devices = 3;
  const contract::Family f =
      efa_test::on_fake(o, {}, [](TransportSettings& s) { s.fabric.nics[0].device = "fake" + std::to_string(s.rank); });
  contract::Shape shape;
  shape.num_ranks = 3;
  contract::Group g(f, shape);
  fake::Fabric::the().cut_device(1, true);
  const WriteRequest both[] = {{1, 1, contract::random_bytes(), g.kBase, 64, 1},
                               {2, 2, contract::random_bytes(), g.kBase, 64, 2}};
  CHECK_EQ(g.lane(0).post(both), 2u);
  g.lane(0).flush();
  PeerEvent e{};
  u64 wr_id = 0;
  bool told = false, done = false;
  CHECK(contract::poll_until([&] {
    Arrival a;
    g.lane(0).poll_arrivals(std::span(&a, 1));
    g.lane(2).poll_arrivals(std::span(&a, 1));
    done |= g.lane(0).poll_completions(std::span(&wr_id, 1)) == 1;
    told |= g.lane(0).poll_events(std::span(&e, 1)) == 1;
    return told && done;
  }));
  CHECK_EQ(wr_id, 2u);
  CHECK_EQ(e.peer, 1u);
  CHECK(e.fault == PeerFault::kLost);
  CHECK_EQ(e.code, on_nic(kVerbsStatus | static_cast<int>(ibv::kWcRetryExcErr), 0));
  fake::Fabric::the().cut_device(1, false);
}

TEST(transport_efa_lane_small_send_queue_is_shared_by_all_peers) {
  efa_test::Device d;
  d.send_entries = 5;
  const contract::Family f = efa_test::on_fake({}, d);
  contract::random_writes(f, contract::Shape{.num_ranks = 4, .max_in_flight = 16}, 100, 500, 9);
}

namespace {

contract::Family two_nics(const efa_test::Device& d = {}, int max_cqe = 1 << 20) {
  fake::Options o;
  o.num_devices = 4;
  o.max_cqe = max_cqe;
  VerbsTuning tuning;
  tuning.probe_ns = 10'000'000;
  return efa_test::on_fake(
      o, d,
      [](TransportSettings& s) {
        s.fabric.nics = {{"fake" + std::to_string(2 * s.rank), 1, -1},
                         {"fake" + std::to_string(2 * s.rank + 1), 1, -1}};
      },
      tuning);
}

// Polls of a worker that naps between its turns: few, so that counts of polls do not stand for time.
PeerEvent heard_within(Lane& lane, int most) {
  PeerEvent e{};
  std::size_t told = 0;
  for (int i = 0; i < most && told == 0; ++i) {
    Arrival a[8];
    u64 t[8];
    lane.poll_completions(t);
    lane.poll_arrivals(a);
    told = lane.poll_events(std::span(&e, 1));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK_EQ(told, 1u);
  return e;
}

}  // namespace

TEST(transport_efa_lane_hears_the_events_of_every_nic) {
  for (const u32 device : {0u, 1u}) {
    contract::Group g(two_nics(), contract::Shape{});
    fake::Fabric::the().push_event(device, ibv::kEventDeviceFatal, 0);
    CHECK_EQ(heard_within(g.lane(0), 100).code, on_nic(kVerbsEvent | static_cast<int>(ibv::kEventDeviceFatal), device));
  }
}

// Nothing was written to it; the second NIC's path is asked too.
TEST(transport_efa_lane_an_idle_peer_that_is_gone_is_found) {
  for (const u32 device : {2u, 3u}) {
    contract::Group g(two_nics(), contract::Shape{});
    fake::Fabric::the().cut_device(device, true);
    const PeerEvent e = heard_within(g.lane(0), 1000);
    CHECK_EQ(e.peer, 1u);
    CHECK(e.fault == PeerFault::kLost);
    CHECK_EQ(g.lane(0).counters().writes, 0u);  // a probe is none
    fake::Fabric::the().cut_device(device, false);
  }
}

// A receiver that does not look: on EFA a completion queue that is full ends the device.
TEST(transport_efa_lane_arrivals_cannot_overrun_their_queue) {
  contract::Group g(two_nics({}, 300), contract::Shape{});
  u64 done = 0;
  for (int i = 0; i < 6000; ++i) {
    const WriteRequest w{1, 1, contract::random_bytes(), contract::Group::kBase, 64, 1};
    u64 t[8];
    g.lane(0).post(std::span(&w, 1));
    g.lane(0).flush();
    done += g.lane(0).poll_completions(t);
  }
  CHECK(done > 300 && done <= 600);
  CHECK(fake::Fabric::the().num_not_ready() != 0);
  CHECK_EQ(fake::Fabric::the().num_overruns(), 0u);
}

// libefa holds the send queue's lock from wr_start to wr_complete, and takes it for every completion.
TEST(transport_efa_lane_polls_no_completions_inside_of_a_session) {
  const contract::Family f = efa_test::on_fake({});
  contract::Group g(f, contract::Shape{});
  const WriteRequest r{1, 7, contract::random_bytes(), g.kBase, 64, 5};
  u64 wr_id = 0;
  for (u32 i = 0; i < 3; ++i) {
    CHECK_EQ(g.lane(0).post(std::span(&r, 1)), 1u);
    CHECK(contract::poll_until([&] {  // nobody has rung the doorbell
      Arrival a;
      g.lane(1).poll_arrivals(std::span(&a, 1));
      return g.lane(0).poll_completions(std::span(&wr_id, 1)) == 1;
    }));
  }
  CHECK_EQ(fake::Fabric::the().num_deadlocks(), 0u);
}
