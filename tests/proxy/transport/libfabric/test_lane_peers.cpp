// Peers that come and go: goodbyes and last words, records that are nobody's, arrivals before a lane is open.
#include <cerrno>

#include "native/check.h"
#include "proxy/transport/libfabric/fake_port.h"

using namespace uccl;
using fake::request;

TEST(libfabric_lane_peers_goodbye_waits_for_last_words) {
  fake::Group g(2);
  g.post(0, request(1, 1, 8, 1));
  CHECK_EQ(g.wr_ids(0).size(), 1u);  // complete, so it counts; rank 1 has not looked yet
  g.lanes[0]->close_peer(1);
  g.wr_ids(0);
  Arrival none;
  CHECK_EQ(g.lanes[1]->poll_arrivals(std::span(&none, 0)), 0u);  // read, and kept for the caller
  CHECK(g.events(1).empty());
  CHECK_EQ(g.arrivals(1).size(), 1u);
  const auto events = g.events(1);
  CHECK_EQ(events.size(), 1u);
  CHECK(events[0].fault == PeerFault::kLost);
  CHECK_EQ(events[0].code, 0);
  CHECK(g.events(0).empty());
}

// The provider lets a goodbye overtake the writes before it, and then loses one of them.
TEST(libfabric_lane_peers_goodbye_does_not_wait_for_ever) {
  fake::Group g(2);
  g.post(0, request(1, 1, 8, 1));
  g.wr_ids(0);
  RmaEvent e;
  CHECK_EQ(g.port(1).poll(std::span(&e, 1)), 1u);  // taken away before rank 1's lane sees it
  g.lanes[0]->close_peer(1);
  g.wr_ids(0);
  g.arrivals(1);
  CHECK(g.events(1).empty());
  std::vector<PeerEvent> events;
  CHECK(contract::poll_until([&] {
    events = g.events(1);
    return !events.empty();
  }));
  CHECK_EQ(events[0].code, 0);
}

TEST(libfabric_lane_peers_believe_only_sealed_goodbyes) {
  fake::Group g(3);
  Greeting h{};
  h.magic = kGreetingMagic;
  h.version = kGreetingVersion;
  h.kind = static_cast<u16>(GreetingKind::kGoodbye);
  h.session = 5;
  h.source = 1;
  h.destination = 0;
  MailboxSlot& slot = g.mailboxes[0][1];
  for (int wrong = 0; wrong < 5; ++wrong) {
    Greeting w = h;
    if (wrong == 0) w.source = 2;
    if (wrong == 1) w.destination = 2;
    if (wrong == 2) w.session = 6;
    if (wrong == 3) w.lane = 1;
    seal(w, fake::secret());
    if (wrong == 4) w.seal[1] ^= 1;
    slot.goodbye = w;
    CHECK(g.events(0).empty());
  }
  h.code = 7;
  seal(h, fake::secret());
  slot.goodbye = h;
  const auto events = g.events(0);
  CHECK_EQ(events.size(), 1u);
  CHECK_EQ(events[0].peer, 1u);
  CHECK_EQ(events[0].code, 7);
}

TEST(libfabric_lane_peers_destroyed_lane_says_goodbye) {
  fake::Group g(3);
  g.port(0).refusals = 5;  // not at the first attempt
  g.lanes[0].reset();
  for (const u32 rank : {1u, 2u}) {
    const auto events = g.events(rank);
    CHECK_EQ(events.size(), 1u);
    CHECK_EQ(events[0].peer, 0u);
    CHECK_EQ(events[0].code, 0);
  }
}

TEST(libfabric_lane_peers_destroyed_lane_does_not_wait_for_the_dead) {
  fake::Group g(2);
  g.port(0).refusals = ~0u;
  const auto begin = std::chrono::steady_clock::now();
  g.lanes[0].reset();
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
}

TEST(libfabric_lane_peers_keep_what_arrives_before_they_are_open) {
  fake::Group g(2, LaneShape{}, false);
  g.lanes[0]->set_tag(1, g.lanes[1]->tag_for(0));
  g.lanes[0]->open(1);
  for (u32 i = 0; i < 3; ++i) g.post(0, request(1, i, 8, i));
  g.wr_ids(0);
  for (int i = 0; i < 3; ++i) g.lanes[1]->work();
  g.lanes[1]->open(0);
  CHECK_EQ(g.arrivals(1).size(), 3u);
}

// More than the lane keeps in its data path: the control path makes room.
TEST(libfabric_lane_peers_room_for_a_flood_before_they_are_open) {
  fake::Group g(2, LaneShape{}, false);
  const u64 tag = g.lanes[1]->tag_for(0);
  for (u64 i = 0; i < 20000; ++i) g.port(1).inject(RmaEvent{.arrival = true, .data = tag << 32 | i});
  g.lanes[1]->work();
  g.lanes[1]->open(0);
  u32 expected = 0;
  for (int i = 0; i < 1000 && expected < 20000; ++i) {
    for (const Arrival& a : g.arrivals(1)) CHECK_EQ(a.immediate, expected++);
  }
  CHECK_EQ(expected, 20000u);
}

TEST(libfabric_lane_peers_refuse_a_mailbox_that_is_too_small) {
  fake::Group g(2);
  LibfabricAddress::LaneAddress a = g.address(1);
  --a.mailbox.bytes;
  CHECK_THROWS(std::runtime_error, g.lanes[0]->add_peer(1, a));
}

TEST(libfabric_lane_peers_closed_peers_tokens_and_arrivals_are_not_reported) {
  fake::Group g(2);
  g.post(0, request(1, 1, 8, 1));
  g.lanes[0]->poll_arrivals({});  // complete, but not yet asked for
  g.post(1, request(0, 2, 8, 2));
  g.wr_ids(1);
  g.lanes[0]->poll_arrivals({});
  g.lanes[0]->close_peer(1);
  CHECK(g.wr_ids(0).empty());
  CHECK(g.arrivals(0).empty());
  CHECK(g.events(0).empty());
}
