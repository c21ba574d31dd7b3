// The rule for reusing a buffer set: two results may be outstanding, ranks drift apart by as much as the rule allows,
// and a rank that only reads still lets the others go on.
#include <sched.h>

#include <algorithm>

#include "kernels/low_latency/calls.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

WorldShape shape_of(std::vector<u32> node_of, u64 shuffle_seed) {
  WorldShape shape;
  shape.node_of = std::move(node_of);
  shape.max_tokens = 8;
  shape.hidden = 64;
  shape.max_topk = 3;
  shape.shuffle_seed = shuffle_seed;
  return shape;
}
const std::vector<std::vector<u32>> kWorlds = {{0, 0}, {0, 1}, {0, 0, 1}, {0, 1, 1, 2}};

}  // namespace

TEST(low_latency_common_two_dispatches_outstanding) {
  u64 seed = 80;
  for (const auto& node_of : kWorlds) {
    World world(shape_of(node_of, ++seed));
    LowLatencyCase c;
    c.seed = seed;
    c.num_experts = 2 * world.num_ranks();
    world.run([&](u32 me) {
      LowLatencyRank rank(world, me, c);
      std::deque<u64> open;
      u64 sent = 0;
      for (u64 step = 0; sent < 24 || !open.empty(); ++step) {
        const bool may_send = sent < 24 && open.size() < 2;
        if (may_send && (open.empty() || mix(seed ^ me << 8 ^ step) % 2)) {  // each rank in its own rhythm
          const TokenInput in = low_latency_input(world, c, sent, me);
          rank.dispatch_send(in);
          open.push_back(sent++);
          continue;
        }
        Received got(world, c);
        rank.dispatch_recv(&got);
        check_no_fault(world, me, "dispatch");
        check_received(world, c, open.front(), me, got);
        open.pop_front();
      }
    });
  }
}

TEST(low_latency_common_combines_outstanding) {
  u64 seed = 90;
  for (const auto& node_of : kWorlds) {
    const WorldShape shape = shape_of(node_of, ++seed);
    World world(shape);
    LowLatencyCase c;
    c.seed = seed;
    c.num_experts = 2 * world.num_ranks();
    c.own_stay = false;  // x ends before the receiving halves begin
    world.run([&](u32 me) {
      LowLatencyRank rank(world, me, c);
      for (u64 round = 0; round < 12; round += 2) {  // two whole rounds interleaved
        TokenInput in[2];
        std::vector<Received> got;
        for (u64 i = 0; i < 2; ++i) {
          in[i] = low_latency_input(world, c, round + i, me);
          rank.dispatch_send(in[i]);
          got.emplace_back(world, c);
        }
        for (u64 i = 0; i < 2; ++i) {
          rank.dispatch_recv(&got[i]);
          check_no_fault(world, me, "dispatch");
          check_received(world, c, round + i, me, got[i]);
          Poisoned<u16> x(u64{c.num_experts} * shape.max_tokens * shape.hidden);
          fill_combine_rows(world, c, round + i, got[i], me, x.data(), shape.hidden);
          rank.combine_send(got[i], x.data());
        }
        for (u64 i = 0; i < 2; ++i) {
          Poisoned<u16> out(u64{shape.max_tokens} * shape.hidden);
          rank.combine_recv(in[i], &out);
          check_no_fault(world, me, "combine");
          check_combined(world, c, round + i, me, out);
        }
      }
    });
  }
}

TEST(low_latency_common_dispatch_without_combine) {  // what has been read is told by announcements alone
  u64 seed = 95;
  for (const auto& node_of : kWorlds) {
    World world(shape_of(node_of, ++seed));
    LowLatencyCase c;
    c.seed = seed;
    c.num_experts = 2 * world.num_ranks();
    world.run([&](u32 me) {
      LowLatencyRank rank(world, me, c);
      for (u64 round = 0; round < 12; ++round) {
        const TokenInput in = low_latency_input(world, c, round, me);
        Received got(world, c);
        rank.dispatch_send(in);
        rank.dispatch_recv(&got);
        check_no_fault(world, me, "dispatch");
        check_received(world, c, round, me, got);
      }
    });
  }
}

TEST(low_latency_common_results_taken_out_of_order) {  // the younger of two outstanding dispatches first
  u64 seed = 97;
  for (const auto& node_of : kWorlds) {
    World world(shape_of(node_of, ++seed));
    LowLatencyCase c;
    c.seed = seed;
    c.num_experts = 2 * world.num_ranks();
    world.run([&](u32 me) {
      LowLatencyRank rank(world, me, c);
      for (u64 round = 0; round < 16; round += 2) {
        for (u64 i = 0; i < 2; ++i) rank.dispatch_send(low_latency_input(world, c, round + i, me));
        for (u64 i = 2; i-- > 0;) {
          Received got(world, c);
          rank.dispatch_recv(&got, i == 1);
          check_no_fault(world, me, "dispatch");
          check_received(world, c, round + i, me, got);
          CHECK_EQ(rank.state().dispatch.consumed, i == 1 ? round : round + 2);  // never one too many
          CHECK_EQ(rank.state().dispatch.ahead, i == 1 ? round + 2 : 0);
        }
        CHECK_EQ(rank.state().dispatch.sent, round + 2);
      }
    });
  }
}

namespace {

// Everything that a recorded round reads and writes, always at the same addresses.
struct ReplayedRound {
  ReplayedRound(const World& w, const LowLatencyCase& c, u32 me, u32 row_stride)
      : in(low_latency_input(w, c, 0, me)),
        got(w, c),
        x(c.zero_copy ? 0 : u64{c.num_experts} * w.shape().max_tokens * row_stride),
        out(u64{w.shape().max_tokens} * w.shape().hidden) {}
  void prepare(const TokenInput& next) {
    CHECK(in.num_tokens == next.num_tokens && in.topk == next.topk);
    std::copy(next.x.begin(), next.x.end(), in.x.begin());
    std::copy(next.topk_idx.begin(), next.topk_idx.end(), in.topk_idx.begin());
    std::copy(next.weights.begin(), next.weights.end(), in.weights.begin());
    got.x.poison();
    out.poison();
  }
  TokenInput in;
  Received got;
  Poisoned<u16> x, out;
};

// Records one round, then replays it `rounds` times with other contents; every ninth round is an ordinary one.
void record_and_replay(World& world, const LowLatencyCase& c, u32 me, u64 rounds) {
  LowLatencyRank rank(world, me, c);
  ReplayedRound r(world, c, me, rank.row_stride());
  u16* const rows = c.zero_copy ? rank.zero_copy_rows() : r.x.data();
  rank.recording.record(true);
  for (u64 round = 0; round <= rounds; ++round) {
    if (round % 9 == 8) {
      low_latency_round(world, rank, c, round, me);
      continue;
    }
    r.prepare(low_latency_input(world, c, round, me));
    if (round == 0) {
      rank.dispatch_send(r.in);
      rank.dispatch_recv(&r.got);
    } else {
      rank.recording.replay(0, 2);
    }
    check_no_fault(world, me, "dispatch");
    check_received(world, c, round, me, r.got);
    fill_combine_rows(world, c, round, r.got, me, rows, rank.row_stride());
    if (round == 0) {
      rank.combine_send(r.got, rows);
      rank.combine_recv(r.in, &r.out);
      rank.recording.record(false);
    } else {
      rank.recording.replay(2, 4);
    }
    if (c.zero_copy) CHECK(world.rings_idle(me));  // nothing reads the rows any more
    check_no_fault(world, me, "combine");
    check_combined(world, c, round, me, r.out);
  }
  CHECK_EQ(rank.recording.size(), 4u);
  CHECK_EQ(rank.state().combine.consumed, rounds + 1);
}

}  // namespace

TEST(low_latency_common_replays_recorded_calls) {  // the same argument bytes a hundred times
  u64 seed = 180;
  for (const auto& node_of : kWorlds) {
    WorldShape shape = shape_of(node_of, ++seed);
    LowLatencyCase c;
    c.seed = seed;
    c.num_experts = 2 * shape.num_ranks();
    c.steady = true;
    c.zero_copy = seed % 2 == 0;
    c.shape = LaunchShape{1 + static_cast<u32>(seed % 2), 2, 1, seed};
    shape.zero_copy_bytes = 2 * align_up(u64{c.num_experts} * shape.max_tokens * (shape.hidden + 16) * 2, 128);
    World world(shape);
    world.run([&](u32 me) { record_and_replay(world, c, me, check::rounds(100, 24)); });
  }
}

TEST(low_latency_common_replays_dispatches_that_nothing_follows) {  // announcements only
  World world(shape_of({0, 1, 1}, 31));
  LowLatencyCase c;
  c.num_experts = 6;
  c.steady = true;
  world.run([&](u32 me) {
    LowLatencyRank rank(world, me, c);
    ReplayedRound r(world, c, me, rank.row_stride());
    rank.recording.record(true);
    for (u64 round = 0; round < 100; ++round) {
      r.prepare(low_latency_input(world, c, round, me));
      if (round == 0) {
        rank.dispatch_send(r.in);
        rank.dispatch_recv(&r.got);
      } else {
        rank.recording.replay(0, 2);
      }
      check_no_fault(world, me, "dispatch");
      check_received(world, c, round, me, r.got);
    }
    CHECK(rank.state().announcements >= 40 && rank.state().announcements <= 100);
  });
}

TEST(low_latency_common_failed_send_leaves_the_numbers) {
  WorldShape shape = shape_of({0, 0}, 0);
  shape.timeout_ns = 100'000'000;
  World world(shape);
  LowLatencyCase c;
  c.num_experts = 4;
  world.run({0}, [&](u32 me) {
    LowLatencyRank rank(world, me, c);
    const TokenInput in = low_latency_input(world, c, 0, me);
    Received got(world, c);
    for (u32 i = 0; i < 4; ++i) rank.dispatch_send(in);  // rank 1 reads nothing: the third waits in vain
    CHECK(world.fault(0).phase == WaitPhase::kDispatchSend);
    rank.dispatch_recv(&got, true);  // of the fourth, which did not even start
    CHECK(got.x.untouched(0) && got.count.untouched(0));
    CHECK_EQ(rank.state().dispatch.sent, 2u);
    CHECK_EQ(rank.state().dispatch.consumed, 0u);
    CHECK_EQ(rank.state().dispatch.ahead, 0u);
  });
  CHECK_EQ(world.word(world.data(1), world.context(0).signals.consumed(Phase::kDispatch, 0)), 0u);
}

TEST(low_latency_common_reuse_waits_for_the_slowest_reader) {
  World world(shape_of({0, 0}, 0));
  LowLatencyCase c;
  c.num_experts = 4;
  u64 sent = 0;
  world.run([&](u32 me) {
    LowLatencyRank rank(world, me, c);
    for (u64 i = 0; i < (me == 0 ? 3u : 2u); ++i) {
      const TokenInput in = low_latency_input(world, c, i, me);
      if (me == 0) {
        rank.dispatch_send(in);
        __atomic_store_n(&sent, i + 1, __ATOMIC_RELEASE);  // pairs with the acquire below
        continue;
      }
      while (__atomic_load_n(&sent, __ATOMIC_ACQUIRE) < 2) sched_yield();
      if (i == 0) {  // two are on their way; the third may not leave before this rank has read the first
        for (u32 turns = 0; turns < 2000; ++turns) sched_yield();
        CHECK_EQ(__atomic_load_n(&sent, __ATOMIC_ACQUIRE), 2u);
      }
      Received got(world, c);
      rank.dispatch_send(in);
      rank.dispatch_recv(&got);
      check_no_fault(world, me, "dispatch");
      check_received(world, c, i, me, got);
    }
  });
  CHECK_EQ(sent, 3u);
}

// When a block comes to look, other blocks may have sent the whole of its call, and a reader may have read it: no fault.
// The call after that nobody can have read.
TEST(low_latency_common_refuses_a_reader_ahead_of_what_was_sent) {
  for (const u64 read : {2, 3}) {
    WorldShape shape;
    shape.node_of = {0, 0};
    shape.max_tokens = 4;
    shape.hidden = 128;
    shape.max_topk = 2;
    World world(shape);
    LowLatencyCase c;
    c.num_experts = 2;
    std::vector<std::unique_ptr<LowLatencyRank>> ranks;
    for (u32 r = 0; r < 2; ++r) ranks.push_back(std::make_unique<LowLatencyRank>(world, r, c));
    world.run([&](u32 me) {
      for (u64 round = 0; round < 2; ++round) low_latency_round(world, *ranks[me], c, round, me);
    });
    const u64 word = world.context(0).signals.consumed(Phase::kDispatch, 1);
    *reinterpret_cast<u64*>(world.data(0) + word) = read;
    world.run({0}, [&](u32 me) { ranks[me]->dispatch_send(low_latency_input(world, c, 2, me)); });
    const Fault f = world.fault(0);
    if (read == 2) {
      CHECK(f.kind == FaultKind::kNone);
      continue;
    }
    CHECK(f.kind == FaultKind::kBadArrival && f.phase == WaitPhase::kDispatchSend);
    CHECK_EQ(f.peer, 1u);
    CHECK(f.expected == 2 && f.seen == 3);
  }
}

TEST(low_latency_common_finds_no_row_outside_registered_memory) {
  WorldShape shape;
  shape.node_of = {0, 0};
  shape.zero_copy_bytes = 1024;
  World world(shape);
  alignas(16) u8 slot[64] = {};
  const auto at = [&](u64 mark) {
    *reinterpret_cast<u64*>(slot) = mark;
    const u16* row = row_of_mark(world.context(0).topology, world.memories(0), 1, slot, 64);
    return reinterpret_cast<const u8*>(row);
  };
  CHECK(at(0) == slot + 16);
  CHECK(at(kRowStays) == world.zero_copy(1) && at(kRowStays | 896) == world.zero_copy(1) + 896);
  for (const u64 mark : {kRowStays | 898, kRowStays | 1, kRowStays | 1024, kRowStays | 1ull << 40, ~0ull, 1ull, 896ull})
    CHECK(at(mark) == nullptr);
}

// A handle that was written to: what it says is bounded before anything is sent by it.
TEST(low_latency_common_refuses_a_handle_that_was_written_to) {
  for (u32 what = 0; what < 3; ++what) {
    WorldShape shape;
    shape.max_tokens = 4;
    shape.hidden = 128;
    shape.max_topk = 2;
    World world(shape);
    LowLatencyCase c;
    c.num_experts = 2;
    c.own_stay = false;
    world.run([&](u32 me) {
      LowLatencyRank rank(world, me, c);
      u64 round = 0;
      while (low_latency_input(world, c, round, me).num_tokens == 0) ++round;
      TokenInput in = low_latency_input(world, c, round, me);
      std::fill(in.topk_idx.begin(), in.topk_idx.end(), i64{0});
      Received got(world, c);
      rank.dispatch_send(in);
      rank.dispatch_recv(&got);
      check_no_fault(world, me, "dispatch");
      const u64 plane = u64{c.num_experts} * shape.max_tokens;
      if (what == 0) got.src_info[plane] = 8;  // slots are 0 to 7
      if (what == 1) got.src_info[2 * plane] = -1;
      if (what == 2) got.layout_range[0] = 5;  // rows of an expert: up to 4
      Poisoned<u16> x(plane * shape.hidden);
      rank.combine_send(got, x.data(), &in);
      const Fault f = world.fault(0);
      CHECK(f.kind == FaultKind::kBadArrival && f.phase == WaitPhase::kCombineSend);
      CHECK_EQ(f.peer, 0u);
      CHECK_EQ(f.expected, what == 2 ? 4u : 8u);
    });
  }
}
