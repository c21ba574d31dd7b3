// A lane against a peer that writes nonsense into the words they share.
#include <atomic>
#include <cerrno>
#include <vector>

#include "native/check.h"
#include "proxy/transport/contract.h"
#include "transport/shared_memory/lane.h"

using namespace uccl;

namespace {

// Two mailboxes in plain memory: `lane` is rank 0, the test plays rank 1.
struct Bench {
  Bench() : theirs(layout.bytes() / 64 + 1), ours(layout.bytes() / 64 + 1), lane(settings(), 0) {
    memory.add(Span{0, sizeof(target), target});
    SharedMemoryLane::Mapping m;
    m.out = out = mailbox_ring(theirs.data(), layout, 0, 0);
    m.in = in = mailbox_ring(ours.data(), layout, 1, 0);
    m.out_capacity = m.in_capacity = layout.capacity;
    m.memory = &memory;
    lane.attach(1, m);
  }
  static TransportSettings settings() {
    TransportSettings s;
    s.num_ranks = 2;
    s.max_in_flight = 4;
    return s;
  }
  bool post(u32 immediate) {
    const WriteRequest r{1, immediate, contract::random_bytes(), 0, 16, immediate};
    return lane.post(std::span(&r, 1)) == 1;
  }
  PeerEvent event() {
    PeerEvent e{};
    CHECK_EQ(lane.poll_events(std::span(&e, 1)), 1u);
    return e;
  }

  struct alignas(64) Line {
    u8 bytes[64];
  };
  MailboxLayout layout{2, 1, 4};
  u8 target[64] = {};
  AddressSpace memory;
  std::vector<Line> theirs, ours;
  MailboxRing *out, *in;
  SharedMemoryLane lane;
};

}  // namespace

TEST(transport_shared_memory_lane_wraps_its_ring) {
  Bench b;
  for (u32 i = 0; i < 23; ++i) {
    CHECK(b.post(i));
    CHECK_EQ(b.out->tail, i + 1ull);
    CHECK_EQ(mailbox_slots(b.out)[i % 4], i);
    b.out->consumed = i + 1;
    u64 wr_id;
    CHECK_EQ(b.lane.poll_completions(std::span(&wr_id, 1)), 1u);
    CHECK_EQ(wr_id, i);
  }
}

TEST(transport_shared_memory_lane_waits_for_completions_to_be_taken) {
  Bench b;
  for (u32 i = 0; i < 4; ++i) CHECK(b.post(i));
  CHECK(!b.post(4));
  b.out->consumed = 4;  // room in the mailbox, but nobody took the wr_ids
  CHECK(!b.post(4));
  u64 wr_id;
  CHECK_EQ(b.lane.poll_completions(std::span(&wr_id, 1)), 1u);
  CHECK(b.post(4));
}

TEST(transport_shared_memory_lane_refuses_a_tail_that_cannot_be) {
  for (const u64 tail : {5ull, 1ull << 40, ~0ull}) {
    Bench b;
    b.in->tail = tail;
    Arrival a[8];
    CHECK_EQ(b.lane.poll_arrivals(a), 0u);
    const PeerEvent e = b.event();
    CHECK(e.fault == PeerFault::kProtocol);
    CHECK_EQ(b.out->closed, 1u + EPROTO);
    CHECK_EQ(b.lane.counters().refused, 1u);
  }
}

TEST(transport_shared_memory_lane_refuses_a_consumed_that_cannot_be) {
  Bench b;
  for (u32 i = 0; i < 4; ++i) CHECK(b.post(i));
  b.out->consumed = 5;  // one more than was pushed
  CHECK(b.post(4));     // dropped: the peer is lost
  CHECK(b.event().fault == PeerFault::kProtocol);
  CHECK_EQ(b.out->tail, 4u);
}

TEST(transport_shared_memory_lane_touches_nothing_after_close) {
  Bench b;
  b.lane.close_peer(1);
  CHECK_EQ(b.out->closed, 1u);
  b.in->tail = 2;
  CHECK(b.post(7));
  Arrival a[4];
  CHECK_EQ(b.lane.poll_arrivals(a), 0u);
  CHECK_EQ(b.out->tail, 0u);
  CHECK_EQ(b.in->consumed, 0u);
  for (const u8 byte : b.target) CHECK_EQ(static_cast<int>(byte), 0);
}

// A peer that has left is not written to, even before its end was polled; what it had sent is still heard.
TEST(transport_shared_memory_lane_stops_writing_to_a_peer_that_left) {
  Bench b;
  mailbox_slots(b.in)[0] = 99;
  mailbox_slots(b.in)[1] = 98;
  b.in->tail = 2;
  b.in->closed = 1;
  CHECK(b.post(7));
  CHECK_EQ(b.out->tail, 0u);
  for (const u8 byte : b.target) CHECK_EQ(static_cast<int>(byte), 0);
  Arrival a;
  for (const u32 immediate : {99u, 98u}) {  // one at a time, and the end only after the last
    PeerEvent none;
    CHECK_EQ(b.lane.poll_events(std::span(&none, 1)), 0u);
    CHECK_EQ(b.lane.poll_arrivals(std::span(&a, 1)), 1u);
    CHECK_EQ(a.immediate, immediate);
  }
  CHECK(b.event().fault == PeerFault::kLost);
}
