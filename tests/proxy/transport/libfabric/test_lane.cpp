// The data path over a provider that the test plays: pieces, refusals, orders, senders.
#include <cerrno>

#include "native/check.h"
#include "proxy/transport/libfabric/fake_port.h"
#include "transport/libfabric/lane.h"
#include "wire/immediate.h"

using namespace uccl;
using fake::request;

namespace {

bool landed(fake::Group& g, u32 rank, u64 at, u64 bytes) {
  return std::memcmp(&g.memory[rank][at], contract::random_bytes(), bytes) == 0;
}

}  // namespace

TEST(libfabric_lane_cuts_long_writes_and_the_last_piece_waits) {
  LaneShape shape;
  shape.max_piece = 100;
  fake::Group g(2, shape);
  g.port(0).hold = true;
  CHECK_EQ(g.post(0, request(1, 9, 250, 4)), 1u);
  CHECK_EQ(g.port(0).pending.size(), 2u);  // the third carries the immediate
  for (const RmaWrite& w : g.port(0).pending) CHECK(!w.with_data && w.confirmed && w.bytes == 100);
  g.port(0).deliver(1);
  CHECK(g.wr_ids(0).empty());
  CHECK_EQ(g.port(0).pending.size(), 1u);  // one of the two has landed: still not
  CHECK(g.arrivals(1).empty());
  g.port(0).deliver(0);
  CHECK(g.wr_ids(0).empty());
  CHECK_EQ(g.port(0).pending.size(), 1u);
  CHECK(g.port(0).pending[0].with_data);
  CHECK_EQ(g.port(0).pending[0].bytes, 50u);
  g.port(0).deliver(0);
  const auto wr_ids = g.wr_ids(0);
  CHECK_EQ(wr_ids.size(), 1u);
  CHECK_EQ(wr_ids[0], 4u);
  const auto arrived = g.arrivals(1);
  CHECK_EQ(arrived.size(), 1u);
  CHECK_EQ(arrived[0].immediate, 9u);
  CHECK_EQ(arrived[0].peer, 0u);
  CHECK(landed(g, 1, 0, 250));
}

TEST(libfabric_lane_sends_pieces_at_once_where_the_provider_keeps_order) {
  LaneShape shape;
  shape.max_piece = 100;
  shape.ordered = true;
  fake::Group g(2, shape);
  g.port(0).hold = true;
  g.post(0, request(1, 9, 200, 4));  // a multiple: no empty piece behind
  CHECK_EQ(g.port(0).pending.size(), 2u);
  CHECK(!g.port(0).pending[0].with_data && g.port(0).pending[1].with_data);
  g.port(0).deliver(1);
  CHECK(g.wr_ids(0).empty());  // the first is still open
  g.port(0).deliver(0);
  CHECK_EQ(g.wr_ids(0).size(), 1u);
}

// Random sizes, pieces, refusals and delivery orders: all that is posted comes back once and lands.
TEST(libfabric_lane_random_writes_over_a_hard_provider) {
  for (u64 seed = 1; seed <= 40; ++seed) {
    u64 state = seed;
    const auto next = [&] { return state = contract::mix(state, 2); };
    LaneShape shape;
    shape.max_piece = 1 + next() % 700;
    shape.max_in_flight = static_cast<u32>(2 + next() % 9);
    fake::Group g(3, shape);
    g.port(0).shuffle_seed = next() | 1;
    constexpr u32 kWrites = 60;
    std::vector<u32> done(kWrites), seen(kWrites);
    u32 posted = 0, completed = 0, arrived = 0;
    for (int turn = 0; turn < 100000 && (completed < kWrites || arrived < kWrites); ++turn) {
      g.port(0).refusals = static_cast<u32>(next() % 4);
      g.port(0).hold = next() % 3 == 0;
      if (posted < kWrites)
        posted += static_cast<u32>(g.post(0, request(1 + posted % 2, posted, posted * 16, posted, posted * 1000)));
      for (const u64 t : g.wr_ids(0)) {
        CHECK_EQ(done.at(t)++, 0u);
        ++completed;
      }
      for (const u32 rank : {1u, 2u}) {
        for (const Arrival& a : g.arrivals(rank)) {
          CHECK_EQ(a.immediate % 2 + 1, rank);
          CHECK_EQ(seen.at(a.immediate)++, 0u);
          CHECK(landed(g, rank, a.immediate * 1000, a.immediate * 16));
          ++arrived;
        }
      }
    }
    CHECK_EQ(completed, kWrites);
    CHECK_EQ(arrived, kWrites);
    CHECK(g.events(0).empty() && g.events(1).empty());
  }
}

TEST(libfabric_lane_a_peer_that_takes_nothing_holds_up_nobody) {
  fake::Group g(3);
  g.port(0).refuse_destination = 1;
  for (u32 i = 0; i < 5; ++i) CHECK_EQ(g.post(0, request(1, i, 8, i)), 1u);
  CHECK_EQ(g.post(0, request(2, 7, 8, 70)), 1u);
  const auto wr_ids = g.wr_ids(0);
  CHECK_EQ(wr_ids.size(), 1u);
  CHECK_EQ(wr_ids[0], 70u);
  g.port(0).refuse_destination = ~0ull;
  CHECK_EQ(g.wr_ids(0).size() + g.wr_ids(0).size(), 5u);
  CHECK_EQ(g.arrivals(1).size(), 5u);
}

TEST(libfabric_lane_gives_up_on_who_takes_nothing_for_too_long) {
  LaneShape shape;
  shape.unreachable_ns = 30'000'000;
  fake::Group g(2, shape);
  g.port(0).refusals = ~0u;
  g.post(0, request(1, 1, 8, 1));
  CHECK(g.events(0).empty());
  std::vector<PeerEvent> events;
  CHECK(contract::poll_until([&] {
    g.wr_ids(0);
    events = g.events(0);
    return !events.empty();
  }));
  CHECK(events[0].fault == PeerFault::kLost);
  CHECK_EQ(events[0].code, ETIMEDOUT);
  CHECK_EQ(g.post(0, request(1, 1, 8, 1)), 1u);  // dropped
}

TEST(libfabric_lane_doorbells_are_shared_but_the_last_rings) {
  fake::Group g(2);
  std::vector<WriteRequest> four(4, request(1, 1, 8));
  CHECK_EQ(g.lanes[0]->post(four), 4u);
  CHECK(g.port(0).written.empty());  // until the doorbell
  g.lanes[0]->flush();
  const auto& w = g.port(0).written;
  CHECK_EQ(w.size(), 4u);
  CHECK(w[0].more && w[1].more && w[2].more && !w[3].more);
}

TEST(libfabric_lane_knows_senders_by_their_tag_only) {
  fake::Group g(3);
  const u64 tag = g.lanes[1]->tag_for(0);
  CHECK(tag != g.lanes[2]->tag_for(0) || tag != g.lanes[1]->tag_for(2));
  for (const u64 data : {0ull, ~0ull, tag << 32 ^ 1ull << 32, tag << 32 ^ 1ull << 63, 5ull << 52 | 3}) {
    g.port(1).inject(RmaEvent{.arrival = true, .data = data});
  }
  CHECK(g.arrivals(1).empty());
  CHECK_EQ(g.lanes[1]->counters().refused, 5u);
  g.port(1).inject(RmaEvent{.arrival = true, .data = tag << 32 | 8});
  const auto a = g.arrivals(1);
  CHECK_EQ(a.size(), 1u);
  CHECK_EQ(a[0].immediate, 8u);
}

TEST(libfabric_lane_knows_senders_by_their_endpoint) {
  LaneShape shape;
  shape.source_form = SourceForm::kAddress;
  fake::Group g(3, shape);
  g.post(2, request(0, 0xffffffff, 8, 1));
  g.port(0).inject(RmaEvent{.arrival = true, .data = 1, .source = fi::kAddrUnspec});
  g.port(0).inject(RmaEvent{.arrival = true, .data = 1, .source = 0});  // itself
  g.wr_ids(2);
  const auto a = g.arrivals(0);
  CHECK_EQ(a.size(), 1u);
  CHECK_EQ(a[0].peer, 2u);
  CHECK_EQ(a[0].immediate, 0xffffffffu);
  CHECK_EQ(g.port(2).written[0].data, 0xffffffffull);  // nothing above the 32 bits
}

TEST(libfabric_lane_knows_senders_by_the_immediate) {
  LaneShape shape;
  shape.source_form = SourceForm::kImmediate;
  fake::Group g(3, shape);
  g.post(2, request(0, pack(Immediate{ImmediateKind::kArrive, 2, 5}), 8));
  g.post(2, request(0, pack(Immediate{ImmediateKind::kArrive, 9, 5}), 8));  // no such rank
  g.wr_ids(2);
  const auto a = g.arrivals(0);
  CHECK_EQ(a.size(), 1u);
  CHECK_EQ(a[0].peer, 2u);
  CHECK_EQ(g.lanes[0]->counters().refused, 1u);
}

TEST(libfabric_lane_a_failed_write_ends_its_peer_once) {
  const struct {
    int error;
    PeerFault fault;
  } cases[] = {{ECONNRESET, PeerFault::kLost}, {266, PeerFault::kNetwork}};
  for (const auto& x : cases) {
    fake::Group g(3);
    g.port(0).hold = true;
    for (u32 i = 0; i < 4; ++i) g.post(0, request(1, i, 8, i));
    g.port(0).deliver(0);
    g.port(0).deliver(0, x.error);
    g.port(0).deliver(0, x.error);
    const auto wr_ids = g.wr_ids(0);
    CHECK_EQ(wr_ids.size(), 1u);
    CHECK_EQ(wr_ids[0], 0u);
    const auto events = g.events(0);
    CHECK_EQ(events.size(), 1u);
    CHECK_EQ(events[0].peer, 1u);
    CHECK(events[0].fault == x.fault);
    CHECK_EQ(events[0].code, x.error);
    CHECK_EQ(g.post(0, request(1, 9, 8, 9)), 1u);
    CHECK_EQ(g.post(0, request(2, 9, 8, 99)), 1u);
    g.port(0).hold = false;
    const auto after = g.wr_ids(0);
    CHECK(after.size() >= 1 && after.back() == 99u);
    CHECK(g.events(0).empty());
  }
}

// A provider that cannot make a write at all; the peer hears of it.
TEST(libfabric_lane_an_impossible_write_is_a_protocol_fault) {
  fake::Group g(2);
  g.port(0).impossible = EFAULT;
  g.post(0, request(1, 1, 8, 1));
  g.wr_ids(0);
  const auto events = g.events(0);
  CHECK_EQ(events.size(), 1u);
  CHECK(events[0].fault == PeerFault::kProtocol);
  CHECK_EQ(events[0].code, EFAULT);
  const auto theirs = g.events(1);
  CHECK_EQ(theirs.size(), 1u);
  CHECK_EQ(theirs[0].code, EPROTO);
}

// An error in the middle of a write of several pieces: those still on their way come back later and harm nothing.
TEST(libfabric_lane_an_error_between_pieces) {
  LaneShape shape;
  shape.max_piece = 10;
  fake::Group g(2, shape);
  g.port(0).hold = true;
  g.post(0, request(1, 1, 45, 1));
  g.post(0, request(1, 2, 45, 2));
  CHECK_EQ(g.port(0).pending.size(), 4u);
  g.port(0).deliver(2, EIO);
  CHECK(g.wr_ids(0).empty());
  CHECK_EQ(g.events(0).size(), 1u);
  g.port(0).hold = false;
  CHECK(g.wr_ids(0).empty());
  CHECK(g.arrivals(1).empty());
}

TEST(libfabric_lane_writes_without_bytes_touch_nothing) {
  fake::Group g(2);
  CHECK_EQ(g.post(0, WriteRequest{1, 6, nullptr, ~0ull, 0, 3}), 1u);
  CHECK_EQ(g.wr_ids(0).size(), 1u);
  CHECK_EQ(g.arrivals(1).size(), 1u);
  CHECK_EQ(g.port(0).written[0].bytes, 0u);
  for (const u8 b : g.memory[1]) CHECK_EQ(static_cast<int>(b), 0);
}
