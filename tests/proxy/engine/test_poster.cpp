// Rings to transport: order across kinds, done with completions in any order, quiet, limits, stalls, refusals.
#include <algorithm>
#include <random>

#include "native/check.h"
#include "proxy/engine/rank_memory.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

Command random_command(std::mt19937& random, u32 num_peers) {
  Command c;
  c.peer = 1 + static_cast<u32>(random() % num_peers);
  c.local_offset = random() % 100 * 16;
  c.remote_offset = random() % 100 * 16;
  c.bytes = random() % 4 * 16;
  switch (random() % 4) {
    case 0: c.op = Op::kWrite, c.key = epoch_key(Phase::kDispatch, random() % 100); break;
    case 1:
      c.op = Op::kCount, c.key = epoch_key(Phase::kCombine, random() % 100), c.bytes = sizeof(ExpectHeader);
      break;
    case 2: c.op = Op::kSequence, c.key = stream_key(Direction::kCombine, random() % 4, random() % 1024); break;
    default: c.op = Op::kCredit, c.key = stream_key(Direction::kDispatch, random() % 4, random() % 500), c.bytes = 0;
  }
  return c;
}

void is_request_of(const WriteRequest& r, const Command& c, const Stepper& rank) {
  CHECK_EQ(r.peer, c.peer);
  CHECK_EQ(r.immediate, pack(Immediate{kind_of(c.op), rank.settings.rank, c.key}));
  CHECK_EQ(r.bytes, c.bytes);
  CHECK_EQ(r.remote_offset, c.remote_offset);
  CHECK(c.bytes == 0 ? r.source == nullptr : r.source == rank.data.data() + c.local_offset);
}

void refused(const Command& command, CommandError error, u32 worker_rings = 1) {
  Stepper rank(Shape{.num_rings = worker_rings, .num_workers = worker_rings});
  rank.settings.peer_bytes[3] = 0;
  const u32 ring = worker_rings - 1;
  rank.push(ring, command);
  rank.push(ring, write_command(1));
  rank.step();
  CHECK_EQ(rank.aborted(), 1ull);
  CHECK_EQ(rank.fault().kind, static_cast<u32>(FaultKind::kBadCommand));
  CHECK_EQ(rank.fault().phase, static_cast<u32>(WaitPhase::kRing));
  CHECK_EQ(rank.fault().peer, command.peer);
  CHECK_EQ(rank.fault().seen, static_cast<u64>(error));
  CHECK_EQ(rank.counters(ring).refused, 1ull);
  CHECK_EQ(rank.done(ring), 1ull);  // complete, so nobody waits for it, and the ring goes on
  CHECK_EQ(rank.lane(ring).posted().size(), 1u);
}

}  // namespace

TEST(engine_poster_keeps_ring_order_across_kinds) {
  std::mt19937 random(11);
  for (int round = 0; round < 20; ++round) {
    Stepper rank(
        Shape{.rank = 0, .num_rings = 3, .capacity = 128, .max_in_flight = 300, .ring_start = (1ull << 32) - 64});
    std::vector<Command> pushed[3];
    for (int i = 0; i < 300; ++i) {
      const u32 ring = static_cast<u32>(i % 3);
      pushed[ring].push_back(random_command(random, 3));
      rank.push(ring, pushed[ring].back());
    }
    rank.step(8);
    const std::vector<WriteRequest> posted = rank.lane().posted();
    CHECK_EQ(posted.size(), 300u);
    CHECK_EQ(rank.lane().num_unflushed(), 0u);
    std::size_t next[3] = {};
    for (const WriteRequest& r : posted) {
      const u32 ring = static_cast<u32>(r.wr_id >> 48);
      CHECK(ring < 3);
      is_request_of(r, pushed[ring][next[ring]++], rank);
    }
    CHECK_EQ(rank.counters().writes, 300ull);
    CHECK_EQ(rank.counters().commands, 300ull);
  }
}

TEST(engine_poster_done_is_the_leading_run_of_completions) {
  std::mt19937 random(12);
  for (const u64 start : {0ull, 61ull, (1ull << 32) - 30}) {
    Stepper rank(Shape{.capacity = 64, .ring_start = start});
    for (int i = 0; i < 60; ++i) rank.push(0, write_command(1 + static_cast<u32>(i % 3)));
    rank.step(3);
    const std::vector<WriteRequest> posted = rank.lane().posted();
    CHECK_EQ(posted.size(), 60u);
    CHECK_EQ(rank.ring_tail(0), start + 60);
    CHECK_EQ(rank.done(0), start);
    std::vector<std::size_t> order(60);
    for (std::size_t i = 0; i < 60; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    std::vector<bool> complete(60, false);
    u64 lead = 0;
    for (const std::size_t i : order) {
      rank.lane().complete(posted[i].wr_id);
      rank.step();
      complete[i] = true;
      while (lead < 60 && complete[lead]) ++lead;
      CHECK_EQ(rank.done(0), start + lead);
    }
    CHECK_EQ(rank.peer_counters[1].in_flight + rank.peer_counters[2].in_flight + rank.peer_counters[3].in_flight, 0ull);
    CHECK_EQ(rank.peer_counters[1].writes, 20ull);
  }
}

TEST(engine_poster_quiet_is_done_after_everything_before_it) {
  Stepper rank(Shape{});
  rank.push(0, write_command(1));
  rank.push(0, write_command(2));
  const u64 quiet = rank.push(0, {Op::kQuiet, 0, 0, 0, 0, 0});
  rank.push(0, write_command(3));
  rank.step(2);
  const auto posted = rank.lane().posted();
  CHECK_EQ(posted.size(), 3u);  // what comes after a quiet does not wait for it
  rank.lane().complete(posted[1].wr_id);
  rank.lane().complete(posted[2].wr_id);
  rank.step();
  CHECK_EQ(rank.done(0), 0ull);
  rank.lane().complete(posted[0].wr_id);
  rank.step();
  CHECK(rank.done(0) > quiet);
  CHECK_EQ(rank.done(0), 4ull);
  CHECK_EQ(rank.counters().quiets, 1ull);
  const u64 alone = rank.push(0, {Op::kQuiet, 0, 0, 0, 0, 0});
  rank.step();
  CHECK(rank.done(0) > alone);
}

TEST(engine_poster_in_flight_limit_stalls_one_ring_only) {
  Stepper rank(Shape{.num_rings = 2, .max_in_flight = 4});
  for (int i = 0; i < 10; ++i) rank.push(0, write_command(1));
  for (int i = 0; i < 3; ++i) rank.push(1, write_command(2));
  rank.step(20);
  auto posted = rank.lane().posted();
  CHECK_EQ(posted.size(), 7u);
  CHECK_EQ(rank.ring_tail(0), 4ull);
  CHECK_EQ(rank.ring_tail(1), 3ull);
  CHECK_EQ(rank.counters().stalls, 1ull);  // one head waited, however often it was looked at
  CHECK_EQ(rank.peer_counters[1].stalls, 1ull);
  CHECK_EQ(rank.peer_counters[2].stalls, 0ull);
  CHECK_EQ(rank.peer_counters[1].in_flight, 4ull);
  rank.lane().complete(posted[1].wr_id);
  rank.lane().complete(posted[0].wr_id);
  rank.step(5);
  CHECK_EQ(rank.lane().posted().size(), 9u);
  CHECK_EQ(rank.counters().stalls, 2ull);
}

TEST(engine_poster_rings_share_the_room_of_a_peer) {
  Stepper rank(Shape{.num_rings = 3, .max_in_flight = 1});
  for (u32 i = 0; i < 30; ++i) rank.push(i % 3, write_command(1));
  u32 taken[3] = {};
  for (u32 turns = 0; turns < 15; ++turns) {
    rank.step();
    for (const WriteRequest& r : rank.lane().take_posted()) {
      ++taken[r.wr_id >> 48];
      rank.lane().complete(r.wr_id);
    }
  }
  for (const u32 n : taken) CHECK_EQ(n, 5u);
}

TEST(engine_poster_limit_holds_for_random_traffic) {
  std::mt19937 random(13);
  Stepper rank(Shape{.num_rings = 3, .capacity = 32, .max_in_flight = 5, .max_in_flight_bytes = 100});
  u64 pushed[3] = {}, open[4] = {}, bytes[4] = {};
  std::vector<WriteRequest> in_flight;
  u64 largest = 0;
  for (int i = 0; i < 30000; ++i) {
    const u32 ring = random() % 3;
    if (pushed[ring] - rank.ring_tail(ring) < 32) rank.push(ring, random_command(random, 3)), ++pushed[ring];
    rank.step();
    for (const WriteRequest& r : rank.lane().posted()) {
      in_flight.push_back(r);
      const u64 before = bytes[r.peer];
      ++open[r.peer], bytes[r.peer] += r.bytes;
      CHECK(open[r.peer] <= 5);
      CHECK(r.bytes == 0 || before == 0 || bytes[r.peer] <= 100);
      largest = std::max(largest, bytes[r.peer]);
    }
    rank.lane().forget_posted();
    for (u32 n = random() % 3; n > 0 && !in_flight.empty(); --n) {
      std::swap(in_flight[random() % in_flight.size()], in_flight.back());
      const WriteRequest r = in_flight.back();
      in_flight.pop_back();
      --open[r.peer], bytes[r.peer] -= r.bytes;
      rank.lane().complete(r.wr_id);
      rank.step();
      for (const WriteRequest& p : rank.lane().take_posted()) {
        in_flight.push_back(p);
        ++open[p.peer], bytes[p.peer] += p.bytes;
      }
    }
  }
  rank.lane().set_echo(true);
  for (const WriteRequest& r : in_flight) rank.lane().complete(r.wr_id);
  rank.step(200);
  for (u32 r = 0; r < 3; ++r) CHECK_EQ(rank.done(r), pushed[r]);
  CHECK(largest >= 80);
}

TEST(engine_poster_a_write_beyond_the_byte_limit_goes_alone) {
  Stepper rank(Shape{.max_in_flight_bytes = 64});
  rank.push(0, write_command(1, 0, 32));
  rank.push(0, write_command(1, 0, 4096));
  rank.push(0, write_command(1, 0, 16));
  rank.step(3);
  CHECK_EQ(rank.lane().posted().size(), 1u);
  rank.lane().complete(rank.lane().posted()[0].wr_id);
  rank.step(3);
  CHECK_EQ(rank.lane().posted().size(), 2u);
  CHECK_EQ(rank.lane().posted()[1].bytes, 4096ull);
  rank.lane().complete(rank.lane().posted()[1].wr_id);
  rank.step(3);
  CHECK_EQ(rank.lane().posted().size(), 3u);
}

TEST(engine_poster_a_full_lane_keeps_order) {
  Stepper rank(Shape{.num_rings = 2});
  rank.lane().set_room(0);
  for (u32 i = 0; i < 40; ++i) rank.push(i % 2, write_command(1 + i % 3, i));
  rank.step(4);
  CHECK_EQ(rank.lane().posted().size(), 0u);
  for (u32 n = 0; n < 45; ++n) {
    rank.lane().set_room(1);
    rank.step();
  }
  const auto posted = rank.lane().posted();
  CHECK_EQ(posted.size(), 40u);
  u32 next[2] = {0, 1};
  for (const WriteRequest& r : posted) {
    const u32 ring = static_cast<u32>(r.wr_id >> 48);
    CHECK_EQ(unpack_immediate(r.immediate).key, next[ring]);
    next[ring] += 2;
  }
  CHECK(rank.counters().stalls > 0);
}

TEST(engine_poster_open_tickets_never_exceed_the_window) {
  Stepper rank(Shape{.capacity = 4, .max_in_flight = 100});
  u64 pushed = 0;
  for (; pushed < 8 && pushed - rank.ring_tail(0) < 4; ++pushed) {
    rank.push(0, write_command(1));
    rank.step();
  }
  CHECK_EQ(rank.lane().posted().size(), 4u);  // tail was released, done was not: the slots of done bound what is open
  CHECK_EQ(rank.ring_tail(0), 4ull);
  for (const WriteRequest& r : rank.lane().posted()) rank.lane().complete(r.wr_id);
  rank.step(2);
  CHECK_EQ(rank.done(0), 4ull);
  CHECK_EQ(rank.lane().posted().size(), 8u);
}

TEST(engine_poster_refuses_bad_commands) {
  const u64 end = kControlOffset + ControlLayout{4, 4}.bytes();
  refused({Op::kNone, 1, 0, 0, 0, 0}, CommandError::kOp);
  refused({static_cast<Op>(kNumOps), 1, 0, 0, 0, 0}, CommandError::kOp);
  refused({Op::kWrite, 0, 0, 0, 0, 0}, CommandError::kPeer);  // itself
  refused({Op::kWrite, 3, 0, 0, 0, 0}, CommandError::kPeer);  // not reached by this transport
  refused({Op::kWrite, 4, 0, 0, 0, 0}, CommandError::kPeer);  // beyond the group
  refused({Op::kWrite, kMaxRanks - 1, 0, 0, 0, 16}, CommandError::kPeer);
  refused({Op::kWrite, 1, 0, kDataBytes, 0, 16}, CommandError::kLocalOffset);
  refused({Op::kWrite, 1, 0, kDataBytes - 16, 0, 32}, CommandError::kLocalOffset);
  refused({Op::kWrite, 1, 0, kMaxRegionBytes - 16, 0, 16}, CommandError::kLocalOffset);
  refused({Op::kSequence, 1, 0, 0, end, 16}, CommandError::kRemoteOffset);
  refused({Op::kWrite, 1, 0, 0, end - 16, 32}, CommandError::kRemoteOffset);
  refused({Op::kWrite, 1, 0, 0, kMaxRegionBytes - 16, 16}, CommandError::kRemoteOffset);
  refused({Op::kCredit, 1, 0, 0, 0, 16}, CommandError::kLength);
  refused({Op::kCount, 1, 0, 0, 0, 16}, CommandError::kLength);
  refused({Op::kCount, 1, 0, 0, 0, 0}, CommandError::kLength);
  refused({Op::kSequence, 1, stream_key(Direction::kDispatch, 4, 0), 0, 0, 0}, CommandError::kKey);
  refused({Op::kCredit, 1, stream_key(Direction::kCombine, 63, 0), 0, 0, 0}, CommandError::kKey);
  refused({Op::kBarrier, 0, 0, 0, 0, 0}, CommandError::kKey);  // round 0 was over before the start
  refused({Op::kBarrier, 0, 1, 0, 0, 0}, CommandError::kOp, 2);  // not on worker 0
}

TEST(engine_poster_takes_the_last_bytes_of_both_spaces) {
  Stepper rank(Shape{});
  const u64 end = kControlOffset + rank.layout.bytes();
  rank.push(0, {Op::kWrite, 1, 0, kDataBytes - 48, end - 48, 48});
  rank.push(0, {Op::kWrite, 1, 0, kMaxRegionBytes - 16, kMaxRegionBytes - 16, 0});  // no bytes: offsets mean nothing
  rank.step();
  CHECK_EQ(rank.aborted(), 0ull);
  CHECK_EQ(rank.lane().posted().size(), 2u);
}

TEST(engine_poster_writes_to_a_lost_peer_are_complete) {
  Stepper rank(Shape{.max_in_flight = 8});
  for (u32 i = 0; i < 20; ++i) rank.push(0, write_command(1 + i % 2, i));
  rank.step(4);
  auto posted = rank.lane().posted();
  CHECK_EQ(posted.size(), 16u);
  rank.lane().report({1, PeerFault::kLost, 0});
  for (const WriteRequest& r : posted)
    if (r.peer == 2) rank.lane().complete(r.wr_id);
  rank.step(20);
  CHECK_EQ(rank.lane().posted().size(), 18u);  // the two that were left to the survivor
  for (const WriteRequest& r : rank.lane().posted()) rank.lane().complete(r.wr_id);  // late ones of the lost peer too
  rank.step(2);
  CHECK_EQ(rank.done(0), 20ull);
  CHECK_EQ(rank.peer_counters[1].in_flight, 0ull);
  // Late completions of the first lap must not complete tickets of a later one in the same slots.
  for (u32 i = 0; i < 60; ++i) {
    rank.push(0, write_command(2, i));
    rank.step();
    for (const WriteRequest& r : posted)
      if (r.peer == 1) rank.lane().complete(r.wr_id);
    rank.step();
    CHECK_EQ(rank.done(0), 20ull + i);
    rank.lane().complete(rank.lane().posted().back().wr_id);
    rank.step();
    CHECK_EQ(rank.done(0), 21ull + i);
  }
}

TEST(engine_poster_commands_to_a_dismissed_peer_are_not_sent) {
  Stepper rank(Shape{});
  rank.membership.dismiss(2);
  rank.step();
  rank.push(0, write_command(2));
  rank.push(0, {Op::kWrite, 2, 0, kDataBytes, 0, 16});  // not even looked at
  rank.push(0, write_command(1));
  rank.step(2);
  CHECK_EQ(rank.done(0), 2ull);
  CHECK_EQ(rank.lane().posted().size(), 1u);
  CHECK_EQ(rank.lane().dropped(), 0ull);
  CHECK_EQ(rank.aborted(), 0ull);
}

TEST(engine_poster_staged_writes_of_a_lost_peer_settle) {
  Stepper rank(Shape{});
  rank.lane().set_room(2);
  for (u32 i = 0; i < 6; ++i) rank.push(0, write_command(1));
  rank.step();
  rank.membership.lose(1, PeerFault::kLost, 0);
  rank.step(3);
  CHECK_EQ(rank.done(0), 6ull);
  CHECK_EQ(rank.lane().dropped(), 4ull);
}
