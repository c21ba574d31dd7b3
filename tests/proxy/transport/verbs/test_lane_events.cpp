// What goes wrong on a verbs lane is told once, with the first reason, about the right peer; the others live on.
#include <chrono>
#include <thread>

#include "native/check.h"
#include "proxy/transport/contract.h"
#include "proxy/transport/verbs/family.h"
#include "transport/verbs/errors.h"

using namespace uccl;

namespace {

constexpr u64 kBase = contract::Group::kBase;

contract::Family three_devices(const VerbsTuning& tuning = {}) {
  fake::Options o;
  o.num_devices = 3;
  return verbs_test::on_fake(
      o, [](TransportSettings& s) { s.fabric.nics[0].device = "fake" + std::to_string(s.rank); }, tuning);
}

contract::Shape three() {
  contract::Shape s;
  s.num_ranks = 3;
  return s;
}

VerbsTuning impatient() {
  VerbsTuning t;
  t.probe_ns = 10'000'000;
  t.farewell_ns = 100'000'000;
  return t;
}

PeerEvent wait_event(Lane& lane) {
  PeerEvent e{};
  CHECK(contract::poll_until([&] {
    Arrival a[8];
    u64 t[8];
    lane.poll_arrivals(a);
    lane.poll_completions(t);
    return lane.poll_events(std::span(&e, 1)) == 1;
  }));
  return e;
}

void still_works(contract::Group& g, u32 from, u32 to) {
  const WriteRequest w{to, 99, contract::random_bytes(), kBase, 64, 77};
  CHECK_EQ(g.lane(from).post(std::span(&w, 1)), 1u);
  g.lane(from).flush();
  u64 wr_id = 0;
  CHECK(contract::poll_until([&] {
    Arrival a[8];
    g.lane(to).poll_arrivals(a);
    return g.lane(from).poll_completions(std::span(&wr_id, 1)) == 1;
  }));
  CHECK_EQ(wr_id, 77u);
}

}  // namespace

TEST(transport_verbs_lane_events_silent_peer_is_found_by_a_probe) {
  contract::Group g(three_devices(impatient()), three());
  fake::Fabric::the().cut_device(1, true);
  const PeerEvent e = wait_event(g.lane(0));  // nothing was written to it
  CHECK_EQ(e.peer, 1u);
  CHECK(e.fault == PeerFault::kLost);
  CHECK_EQ(e.code, on_nic(kVerbsStatus | static_cast<int>(ibv::kWcRetryExcErr), 0));
  still_works(g, 0, 2);
  CHECK_EQ(g.lane(0).counters().writes, 1u);  // a probe is none
}

// Its worker naps between turns: a second has as few polls as it may, and as many probes as ever.
TEST(transport_verbs_lane_events_probes_go_by_the_clock) {
  contract::Group g(three_devices(impatient()), three());
  fake::Fabric::the().cut_device(1, true);
  PeerEvent e{};
  u32 polls = 0;
  for (; polls < 400 && g.lane(0).poll_events(std::span(&e, 1)) == 0; ++polls) {
    u64 t[8];
    Arrival a[8];
    g.lane(0).poll_completions(t);
    g.lane(0).poll_arrivals(a);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(polls < 400);
  CHECK_EQ(e.peer, 1u);
}

// A second NIC's event too, and the second lane hears of what the first has taken from the device.
TEST(transport_verbs_lane_events_are_heard_within_a_few_polls) {
  fake::Options o;
  o.num_devices = 2;
  contract::Shape two;
  two.num_lanes = 2;
  contract::Group g(verbs_test::on_fake(o, [](TransportSettings& s) { s.fabric.nics.push_back({"fake1", 1, -1}); }),
                    two);
  fake::Fabric::the().push_event(1, ibv::kEventDeviceFatal, 0);
  for (const u32 lane : {0u, 1u}) {
    PeerEvent e{};
    u32 polls = 0;
    for (; polls < 50 && g.lane(0, lane).poll_events(std::span(&e, 1)) == 0; ++polls)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(polls < 50);
    CHECK_EQ(e.code, on_nic(kVerbsEvent | static_cast<int>(ibv::kEventDeviceFatal), 1));
  }
}

// A link that goes and comes back: what was on its way arrives, and nobody is told. With as little patience as there is,
// the same flap ends the connection.
TEST(transport_verbs_lane_events_a_link_flap_is_survived) {
  for (const bool patient : {true, false}) {
    fake::Options o;
    o.num_devices = 2;
    o.retry_ns = 0;
    contract::Group g(verbs_test::on_fake(o,
                                          [&](TransportSettings& s) {
                                            s.fabric.nics[0].device = "fake" + std::to_string(s.rank);
                                            s.fabric.timeout = patient ? 17 : 8;  // 537 ms, 1 ms
                                            s.fabric.retries = patient ? 7 : 1;
                                          }),
                      contract::Shape{});
    fake::Fabric::the().cut_device(1, true);
    std::vector<WriteRequest> many(20, WriteRequest{1, 1, contract::random_bytes(), kBase, 64, 1});
    CHECK_EQ(g.lane(0).post(many), 20u);
    g.lane(0).flush();
    PeerEvent e{};
    u64 t[8];
    Arrival a[8];
    std::size_t told = 0, done = 0;
    const auto begin = std::chrono::steady_clock::now();
    const auto gone = patient ? std::chrono::milliseconds(100) : std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() - begin < gone && told == 0) {
      CHECK_EQ(g.lane(0).poll_completions(t), 0u);
      told += g.lane(0).poll_events(std::span(&e, 1));
    }
    CHECK_EQ(told, patient ? 0u : 1u);
    fake::Fabric::the().cut_device(1, false);
    if (!patient) continue;
    CHECK(contract::poll_until([&] {
      g.lane(1).poll_arrivals(a);
      done += g.lane(0).poll_completions(t);
      CHECK_EQ(g.lane(0).poll_events(std::span(&e, 1)) + g.lane(1).poll_events(std::span(&e, 1)), 0u);
      return done == 20;
    }));
  }
}

TEST(transport_verbs_lane_events_a_lost_link_explains_retries) {
  contract::Group g(three_devices(impatient()), three());
  fake::Fabric::the().push_event(0, ibv::kEventPortErr, 1);
  fake::Fabric::the().cut_device(0, true);
  const PeerEvent e = wait_event(g.lane(0));
  CHECK_EQ(e.code, on_nic(kVerbsEvent | static_cast<int>(ibv::kEventPortErr), 0));
  CHECK(e.fault == PeerFault::kNetwork);
}

TEST(transport_verbs_lane_events_a_removed_device_ends_every_peer) {
  contract::Group g(three_devices(), three());
  fake::Fabric::the().push_event(0, ibv::kEventDeviceFatal, 0);
  for (int i = 0; i < 2; ++i) {
    const PeerEvent e = wait_event(g.lane(0));
    CHECK_EQ(e.code, on_nic(kVerbsEvent | static_cast<int>(ibv::kEventDeviceFatal), 0));
  }
  still_works(g, 1, 2);
}

// The memory of rank 1 is no longer registered: the writer is told why, not that later writes were flushed.
TEST(transport_verbs_lane_events_the_first_error_is_the_reason) {
  contract::Group g(three_devices(), three());
  const VerbsAddress there = decode_address(g.transports[1]->local_address());
  fake::Fabric::the().invalidate(there.nics[0].rkeys[0]);
  std::vector<WriteRequest> many(40, WriteRequest{1, 1, contract::random_bytes(), kBase, 64, 1});
  CHECK_EQ(g.lane(0).post(many), 40u);
  g.lane(0).flush();
  const PeerEvent e = wait_event(g.lane(0));
  CHECK_EQ(e.peer, 1u);
  CHECK_EQ(e.code, on_nic(kVerbsStatus | static_cast<int>(ibv::kWcRemAccessErr), 0));
  CHECK(e.fault == PeerFault::kProtocol);
  still_works(g, 0, 2);
  PeerEvent none;
  for (int i = 0; i < 300; ++i) CHECK_EQ(g.lane(0).poll_events(std::span(&none, 1)), 0u);
}

TEST(transport_verbs_lane_events_a_flush_without_a_reason_is_told_in_the_end) {
  contract::Group g(three_devices(), three());
  auto& lane = dynamic_cast<VerbsLane&>(g.lane(0));
  fake::Fabric::the().break_queue_pair(lane.queue(lane.queue_index(2, 0, 0)).pair.number());
  const WriteRequest w{2, 1, contract::random_bytes(), kBase, 64, 1};
  CHECK_EQ(lane.post(std::span(&w, 1)), 1u);
  lane.flush();
  const PeerEvent e = wait_event(lane);
  CHECK_EQ(e.peer, 2u);
  CHECK_EQ(e.code, on_nic(kVerbsStatus | static_cast<int>(ibv::kWcWrFlushErr), 0));
  still_works(g, 0, 1);
}

// The send queue was flushed because of what the peer did to our memory: the receive queue says so a moment later.
TEST(transport_verbs_lane_events_a_flush_waits_for_its_reason) {
  contract::Group g(three_devices(), three());
  auto& lane = dynamic_cast<VerbsLane&>(g.lane(0));
  const u32 number = lane.queue(lane.queue_index(2, 0, 0)).pair.number();
  fake::Fabric::the().break_queue_pair(number);
  const WriteRequest w{2, 1, contract::random_bytes(), kBase, 64, 1};
  CHECK_EQ(lane.post(std::span(&w, 1)), 1u);
  lane.flush();
  u64 wr_id;
  CHECK_EQ(lane.poll_completions(std::span(&wr_id, 1)), 0u);
  PeerEvent e{};
  CHECK_EQ(lane.poll_events(std::span(&e, 1)), 0u);
  ibv::Wc wc{};
  wc.status = ibv::kWcLocAccessErr;
  wc.qp_num = number;
  auto* cq = reinterpret_cast<ibv::CqEx*>(lane.endpoint(0).receives().get());
  fake::Fabric::the().push(*static_cast<fake::Cq*>(cq), wc);
  e = wait_event(lane);
  CHECK_EQ(e.peer, 2u);
  CHECK_EQ(e.code, on_nic(kVerbsStatus | static_cast<int>(ibv::kWcLocAccessErr), 0));
}

// Unfinished writes to a closed peer are broken off: their source may be used for something else at once.
TEST(transport_verbs_lane_events_closing_breaks_off_what_is_on_its_way) {
  contract::Group g(three_devices(impatient()), three());
  fake::Fabric::the().hold_back_receives(true);
  std::vector<WriteRequest> many(30, WriteRequest{1, 1, contract::random_bytes(), kBase, 64, 1});
  CHECK_EQ(g.lane(0).post(many), 30u);
  g.lane(0).flush();
  g.lane(0).close_peer(1);
  fake::Fabric::the().hold_back_receives(false);
  Arrival a[8];
  u64 t[8];
  for (int i = 0; i < 500; ++i) {
    CHECK_EQ(g.lane(1).poll_arrivals(a), 0u);
    CHECK_EQ(g.lane(0).poll_completions(t), 0u);
  }
  const PeerEvent e = wait_event(g.lane(1));  // by a probe of its own
  CHECK_EQ(e.peer, 0u);
  CHECK(e.fault == PeerFault::kLost);
  still_works(g, 0, 2);
}
