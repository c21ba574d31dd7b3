// The lane that families share: judged once, refused once, parted with once.
#include "native/check.h"
#include "transport/judging_lane.h"

using namespace uccl;

namespace {

struct Parting {
  u32 peer, farewell;
};

// Refuses what is of 13 bytes; has room for `room`.
class SmallLane final : public JudgingLane {
 public:
  explicit SmallLane(u32 num_ranks) : JudgingLane(num_ranks) {}
  void open(u32 peer) { book_.open(peer); }
  void flush() override {}
  std::size_t poll_completions(std::span<u64>) override { return 0; }
  std::size_t poll_arrivals(std::span<Arrival>) override { return 0; }

  std::vector<u32> taken;
  std::vector<Parting> partings;
  std::size_t room = 100;

 private:
  std::size_t take(std::span<const WriteRequest> requests) override {
    std::size_t n = 0;
    for (; n < requests.size(); ++n) {
      if (!book_.is_open(requests[n].peer)) continue;
      if (room == 0) break;
      if (requests[n].bytes == 13) {
        refuse(requests[n].peer, ERANGE);
        continue;
      }
      --room;
      taken.push_back(requests[n].immediate);
    }
    return n;
  }
  void part(u32 peer, u32 farewell) override { partings.push_back({peer, farewell}); }
};

WriteRequest to(u32 peer, u32 immediate, u64 bytes = 0) { return {peer, immediate, nullptr, 0, bytes}; }

}  // namespace

TEST(transport_judging_lane_posts_what_is_good_and_refuses_the_rest_once) {
  SmallLane lane(4);
  for (u32 p = 0; p < 3; ++p) lane.open(p);  // not rank 3
  const WriteRequest requests[] = {to(0, 1), to(3, 2),     to(3, 3), to(9, 4),
                                   to(1, 5), to(1, 6, 13), to(1, 7), to(0, 8, kMaxWriteBytes + 1),
                                   to(0, 9), to(2, 10)};
  CHECK_EQ(lane.post(requests), 10u);
  CHECK(lane.taken == std::vector<u32>({1, 5, 10}));
  CHECK_EQ(lane.counters().refused, 4u);  // 2, 4, 6, 8; what came behind to the same peers is dropped
  CHECK_EQ(lane.partings.size(), 2u);     // rank 3 was never open
  CHECK_EQ(lane.partings[0].peer, 1u);
  CHECK_EQ(lane.partings[1].peer, 0u);
  for (const Parting& p : lane.partings) CHECK_EQ(p.farewell, static_cast<u32>(EPROTO));
  PeerEvent events[8];
  CHECK_EQ(lane.poll_events(events), 3u);
  const int codes[] = {ENOTCONN, ERANGE, EMSGSIZE};
  for (int i = 0; i < 3; ++i) {
    CHECK(events[i].fault == PeerFault::kProtocol);
    CHECK_EQ(events[i].code, codes[i]);
  }
}

TEST(transport_judging_lane_takes_only_what_it_has_room_for) {
  SmallLane lane(2);
  lane.open(1);
  lane.room = 2;
  const WriteRequest requests[] = {to(1, 1), to(1, 2), to(1, 3), to(1, 4)};
  CHECK_EQ(lane.post(requests), 2u);
  CHECK_EQ(lane.post(std::span(requests).subspan(2)), 0u);
  lane.room = 9;
  CHECK_EQ(lane.post(std::span(requests).subspan(2)), 2u);
  CHECK(lane.taken == std::vector<u32>({1, 2, 3, 4}));
  CHECK_EQ(lane.post({}), 0u);
}

TEST(transport_judging_lane_closes_a_peer_once) {
  SmallLane lane(2);
  lane.open(1);
  lane.close_peer(7);  // nobody
  lane.close_peer(0);  // never open: nothing to part with
  lane.close_peer(1);
  lane.close_peer(1);
  CHECK_EQ(lane.partings.size(), 1u);
  CHECK_EQ(lane.partings[0].farewell, 0u);
  const WriteRequest late = to(1, 1);
  CHECK_EQ(lane.post({&late, 1}), 1u);  // taken and dropped
  CHECK(lane.taken.empty());
  CHECK_EQ(lane.counters().refused, 0u);
}
