// A lane's economy: one epoll_wait a poll whatever the number of peers, few system calls a message, and fairness.
#include "native/check.h"
#include "proxy/transport/contract.h"
#include "transport/tcp/lane.h"

using namespace uccl;

namespace {

const contract::Family kTcp{"tcp", [](const TransportSettings& s) { return make_transport("tcp", s); }};

}  // namespace

TEST(transport_tcp_lane_idle_poll_is_one_system_call) {
  contract::Shape shape;
  shape.num_ranks = 12;
  contract::Group g(kTcp, shape);
  Lane& lane = g.lane(0);
  Arrival a[8];
  for (int i = 0; i < 20; ++i) lane.poll_arrivals(a);  // the first reports of new connections
  const u64 before = lane.counters().system_calls;
  for (int i = 0; i < 1000; ++i) lane.poll_arrivals(a);
  CHECK_EQ(lane.counters().system_calls - before, 1000u);
  for (int i = 0; i < 1000; ++i) lane.flush();  // nothing posted: nothing to do
  CHECK_EQ(lane.counters().system_calls - before, 1000u);
}

TEST(transport_tcp_lane_small_messages_share_system_calls) {
  contract::Shape shape;
  shape.max_in_flight = 256;
  contract::Group g(kTcp, shape);
  std::vector<WriteRequest> requests(256, WriteRequest{1, 1, contract::random_bytes(), g.kBase, 8, 1});
  const u64 before = g.lane(0).counters().system_calls;
  CHECK_EQ(g.lane(0).post(requests), 256u);
  g.lane(0).flush();
  CHECK(g.lane(0).counters().system_calls - before <= 10);
  std::size_t arrived = 0, completed = 0;
  const u64 before_receive = g.lane(1).counters().system_calls;
  u64 polls = 0;
  CHECK(contract::poll_until([&] {
    Arrival a[64];
    const std::size_t n = g.lane(1).poll_arrivals(a);
    arrived += n;
    polls += 1;
    return arrived == 256;
  }));
  CHECK(g.lane(1).counters().system_calls - before_receive <= polls + 20);
  CHECK(contract::poll_until([&] {
    Arrival a;
    u64 wr_ids[256];
    g.lane(1).poll_arrivals(std::span(&a, 1));
    g.lane(0).poll_arrivals(std::span(&a, 1));
    completed += g.lane(0).poll_completions(wr_ids);
    return completed == 256;
  }));
}

// One peer sends without end; the other's single message and its acknowledgement still get through.
TEST(transport_tcp_lane_a_busy_peer_starves_nobody) {
  contract::Shape shape;
  shape.num_ranks = 3;
  shape.max_in_flight = 512;
  contract::Group g(kTcp, shape);
  std::vector<WriteRequest> flood(512, WriteRequest{0, 1, contract::random_bytes(), g.kBase, 64, 1});
  u64 wr_ids[512];
  bool sent = false, heard = false, acknowledged = false;
  Arrival a[16];
  for (int i = 0; i < 3000 && !acknowledged; ++i) {
    g.lane(1).post(flood);
    g.lane(1).flush();
    g.lane(1).poll_arrivals(a);
    g.lane(1).poll_completions(wr_ids);
    if (i > 20 && !sent) {
      const WriteRequest r{0, 77, contract::random_bytes(), g.kBase + 4096, 64, 9};
      sent = g.lane(2).post(std::span(&r, 1)) == 1;
      g.lane(2).flush();
    }
    const std::size_t n = g.lane(0).poll_arrivals(a);
    for (std::size_t j = 0; j < n; ++j) heard |= a[j].peer == 2 && a[j].immediate == 77;
    Arrival none[4];
    g.lane(2).poll_arrivals(none);
    acknowledged = g.lane(2).poll_completions(wr_ids) == 1;
  }
  CHECK(sent && heard && acknowledged);
}

TEST(transport_tcp_lane_reports_the_end_after_the_last_arrivals) {
  contract::Group g(kTcp, contract::Shape{});
  std::vector<WriteRequest> requests(40, WriteRequest{1, 1, contract::random_bytes(), g.kBase, 8, 1});
  CHECK_EQ(g.lane(0).post(requests), 40u);
  g.lane(0).flush();
  g.transports[0].reset();
  std::size_t arrived = 0;
  PeerEvent e{};
  CHECK(contract::poll_until([&] {
    Arrival a;
    arrived += g.lane(1).poll_arrivals(std::span(&a, 1));  // one at a time: the rest waits in the inbox
    return g.lane(1).poll_events(std::span(&e, 1)) == 1;
  }));
  CHECK_EQ(arrived, 40u);
  CHECK_EQ(e.code, 0);
}

// Arrivals that wait in the inbox when their peer is closed are not delivered any more.
TEST(transport_tcp_lane_drops_the_inbox_of_a_closed_peer) {
  contract::Group g(kTcp, contract::Shape{});
  std::vector<WriteRequest> requests(40, WriteRequest{1, 1, contract::random_bytes(), g.kBase, 8, 1});
  CHECK_EQ(g.lane(0).post(requests), 40u);
  g.lane(0).flush();
  Arrival a;
  CHECK(contract::poll_until([&] { return g.lane(1).poll_arrivals(std::span(&a, 1)) == 1; }));
  CHECK_EQ(g.lane(1).poll_arrivals(std::span(&a, 1)), 1u);
  g.lane(1).close_peer(0);
  Arrival many[64];
  for (int i = 0; i < 50; ++i) CHECK_EQ(g.lane(1).poll_arrivals(many), 0u);
}
