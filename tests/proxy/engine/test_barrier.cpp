// Barrier rounds among several engines: none leaves before all have entered, whatever the order of delivery; early
// rounds, wraps of the round field, lost peers.
#include <algorithm>
#include <random>

#include "native/check.h"
#include "proxy/engine/rank_memory.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

Command barrier(u64 round) { return {Op::kBarrier, 0, static_cast<u32>(round & low_bits(kKeyBits)), 0, 0, 0}; }
u64 round_of(const Stepper& rank) { return rank.word(ControlLayout::kBarrier); }

// Ranks joined by a network that delivers in a random order.
struct Group {
  explicit Group(u32 n, u64 round, u32 seed) : random(seed) {
    for (u32 r = 0; r < n; ++r) {
      ranks.push_back(std::make_unique<Stepper>(Shape{.rank = r, .num_ranks = n, .max_in_flight = 3}));
      ranks[r]->set_word(ControlLayout::kBarrier, round);
    }
  }
  // Everybody steps, and about half of what is under way is delivered and completed.
  void pump() {
    for (u32 r = 0; r < ranks.size(); ++r) {
      ranks[r]->step();
      for (const WriteRequest& w : ranks[r]->lane().posted()) under_way.push_back({r, w});
      ranks[r]->lane().forget_posted();
    }
    std::shuffle(under_way.begin(), under_way.end(), random);
    for (std::size_t n = (under_way.size() + 1) / 2; n > 0; --n) {
      const auto [from, w] = under_way.back();
      under_way.pop_back();
      ranks[w.peer]->lane().deliver(w.immediate, from);
      ranks[from]->lane().complete(w.wr_id);
      if (unpack_immediate(w.immediate).kind == ImmediateKind::kArrive) ++data_delivered;
    }
  }
  std::vector<std::unique_ptr<Stepper>> ranks;
  std::vector<std::pair<u32, WriteRequest>> under_way;
  std::mt19937 random;
  u64 data_delivered = 0;
};

void many_rounds(u32 n, u64 first) {
  Group group(n, first - 1, n);
  std::vector<u64> entered(n, first - 1);
  u64 data = 0;
  for (u32 turns = 0; turns < 40'000; ++turns) {
    // A rank enters its next round at a random moment after its last one is over, with data before it.
    const u32 r = static_cast<u32>(group.random() % n);
    if (round_of(*group.ranks[r]) == entered[r] && entered[r] < first + 30) {
      for (u64 writes = group.random() % 4; writes > 0; --writes, ++data)
        group.ranks[r]->push(0, write_command(r == 0 ? 1 : 0, epoch_key(Phase::kSpare, 1)));
      group.ranks[r]->push(0, barrier(++entered[r]));
    }
    group.pump();
    for (const auto& rank : group.ranks)
      for (u32 other = 0; other < n; ++other) CHECK(round_of(*rank) <= entered[other]);
  }
  for (u32 r = 0; r < n; ++r) {
    CHECK_EQ(round_of(*group.ranks[r]), first + 30);
    CHECK_EQ(group.ranks[r]->counters().barriers, 31ull);
    CHECK_EQ(group.ranks[r]->aborted(), 0ull);
    CHECK_EQ(group.ranks[r]->done(0), group.ranks[r]->ring_tail(0));
  }
  CHECK_EQ(group.data_delivered, data);
}

}  // namespace

TEST(engine_barrier_two_three_and_five_ranks) {
  for (const u32 n : {2u, 3u, 5u}) many_rounds(n, 1);
}

TEST(engine_barrier_past_the_wrap_of_the_round_field) { many_rounds(3, (1ull << kKeyBits) - 15); }

TEST(engine_barrier_waits_for_its_own_ring_first) {
  Stepper rank(Shape{.num_ranks = 3});
  rank.push(0, write_command(1));
  rank.push(0, barrier(1));
  rank.push(0, write_command(2));
  rank.deliver(ImmediateKind::kBarrier, 1, 1);  // both peers are early
  rank.deliver(ImmediateKind::kBarrier, 2, 1);
  rank.step(5);
  CHECK_EQ(rank.lane().posted().size(), 1u);
  CHECK_EQ(round_of(rank), 0ull);
  rank.lane().complete(rank.lane().posted()[0].wr_id);
  rank.step(2);
  const auto posted = rank.lane().posted();
  CHECK_EQ(posted.size(), 4u);  // two immediates, then what came behind the barrier
  for (u32 i = 1; i <= 2; ++i) {
    CHECK_EQ(posted[i].peer, i);
    CHECK_EQ(posted[i].immediate, pack(Immediate{ImmediateKind::kBarrier, 0, 1}));
    CHECK_EQ(posted[i].bytes, 0ull);
  }
  CHECK_EQ(round_of(rank), 1ull);
  CHECK_EQ(rank.done(0), 2ull);
  CHECK_EQ(rank.peer_counters[1].in_flight, 1ull);
  rank.lane().complete(posted[1].wr_id);
  rank.step();
  CHECK_EQ(rank.peer_counters[1].in_flight, 0ull);
}

TEST(engine_barrier_a_later_round_overtakes_an_earlier) {
  Stepper rank(Shape{.num_ranks = 2});
  rank.deliver(ImmediateKind::kBarrier, 1, 2);  // its round 1 is still on the way
  rank.push(0, barrier(1));
  rank.step(2);
  CHECK_EQ(round_of(rank), 1ull);
  rank.deliver(ImmediateKind::kBarrier, 1, 1);
  rank.step(2);
  CHECK_EQ(rank.counters().stale, 1ull);
  rank.push(0, barrier(2));
  rank.step(2);
  CHECK_EQ(round_of(rank), 2ull);
}

TEST(engine_barrier_other_rings_go_on_and_take_turns) {
  Stepper rank(Shape{.num_ranks = 2, .num_rings = 2});
  rank.push(0, barrier(1));
  rank.push(1, write_command(1));
  rank.push(1, barrier(2));
  rank.step(4);
  CHECK_EQ(rank.lane().posted().size(), 2u);  // round 1's immediate and the write
  for (const WriteRequest& r : rank.lane().posted()) rank.lane().complete(r.wr_id);
  rank.step(4);
  CHECK_EQ(rank.done(1), 1ull);
  CHECK_EQ(rank.lane().posted().size(), 2u);  // round 2 waits for round 1
  rank.deliver(ImmediateKind::kBarrier, 1, 1);
  rank.deliver(ImmediateKind::kBarrier, 1, 2);
  rank.step(4);
  CHECK_EQ(round_of(rank), 2ull);
  CHECK_EQ(rank.done(0), 1ull);
  CHECK_EQ(rank.done(1), 2ull);
}

TEST(engine_barrier_immediates_wait_for_room_like_any_write) {
  Stepper rank(Shape{.num_ranks = 2, .num_rings = 2, .max_in_flight = 1});
  rank.push(1, write_command(1));
  rank.step();
  rank.push(0, barrier(1));
  rank.deliver(ImmediateKind::kBarrier, 1, 1);
  rank.step(4);
  CHECK_EQ(rank.lane().posted().size(), 1u);
  CHECK_EQ(round_of(rank), 0ull);
  rank.lane().complete(rank.lane().posted()[0].wr_id);
  rank.step(2);
  CHECK_EQ(rank.lane().posted().size(), 2u);
  CHECK_EQ(round_of(rank), 1ull);
}

TEST(engine_barrier_without_remote_peers_is_over_at_once) {
  Stepper rank(Shape{.num_ranks = 3});
  rank.settings.peer_bytes = {0, 0, 0};
  rank.push(0, barrier(1));
  rank.step();
  CHECK_EQ(round_of(rank), 1ull);
  CHECK_EQ(rank.done(0), 1ull);
}

TEST(engine_barrier_goes_on_without_lost_and_dismissed_peers) {
  Stepper rank(Shape{.num_ranks = 5});
  rank.membership.dismiss(1);
  rank.step();
  rank.push(0, barrier(1));
  rank.step();
  CHECK_EQ(rank.lane().posted().size(), 3u);  // not to rank 1
  rank.deliver(ImmediateKind::kBarrier, 3, 1);
  rank.deliver(ImmediateKind::kBarrier, 4, 1);
  rank.step(2);
  CHECK_EQ(round_of(rank), 0ull);
  rank.membership.lose(2, PeerFault::kLost, 0);  // while it is waited for
  rank.step(2);
  CHECK_EQ(round_of(rank), 1ull);
}

TEST(engine_barrier_arrives_on_the_first_lane_only) {
  Stepper rank(Shape{.num_workers = 2});
  rank.deliver(ImmediateKind::kBarrier, 1, 1, 1);
  rank.step();
  CHECK_EQ(rank.counters(1).refused, 1ull);
  CHECK_EQ(rank.aborted(), 1ull);
}

TEST(engine_barrier_notes_who_is_still_missing) {
  Stepper rank(Shape{});
  rank.settings.peer_bytes[2] = 0;  // of this node: meets by load and store
  const auto note = [&](u32 peer) { return rank.word(rank.layout.progress(Phase::kSpare, peer)); };
  rank.deliver(ImmediateKind::kBarrier, 3, 1);  // early
  rank.step();
  for (u32 peer = 0; peer < 4; ++peer) CHECK_EQ(note(peer), 0ull);
  rank.push(0, barrier(1));
  rank.step();
  CHECK_EQ(note(1), 1ull << 32);
  CHECK_EQ(note(3), 1ull << 32 | 1);
  for (const u32 other : {0u, 2u}) CHECK_EQ(note(other), 0ull);
  rank.land_header(Phase::kSpare, 1, 1, 0);  // an announcement of low latency leaves the note alone
  rank.deliver(ImmediateKind::kExpect, 1, epoch_key(Phase::kSpare, 1));
  rank.step();
  CHECK_EQ(rank.flag(Phase::kSpare, 1), 1ull);
  CHECK_EQ(note(1), 1ull << 32);
  rank.deliver(ImmediateKind::kBarrier, 1, 1);
  rank.step(2);
  CHECK_EQ(note(1), 1ull << 32 | 1);
  CHECK_EQ(round_of(rank), 1ull);
  rank.push(0, barrier(2));
  rank.step();
  for (const u32 peer : {1u, 3u}) CHECK_EQ(note(peer), 1ull << 32);
}
