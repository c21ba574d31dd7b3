// Combine's inner step by itself: which rows of which ranks a token gets, batch by batch, and that planning never waits
// while it holds rows.
#include <algorithm>

#include "kernels/throughput/own_sums.h"
#include "kernels/world.h"
#include "native/check.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

constexpr u32 kHidden = 8;

struct Bench {
  WorldShape shape;
  std::unique_ptr<World> world;
  RowShape row{kHidden * 2, 0, 2, 0, 1};
  ThroughputCall call{};
  std::vector<u32> reducer_tokens;
  std::vector<u8> own_payload;  // rank 0's own rows, which it also sums
  std::vector<i32> own_tokens;
  std::vector<float> own_weights;

  // Ranks of one node; `tokens[g]`: tokens of rank 0 that rank g has rows for, ascending.
  explicit Bench(const std::vector<std::vector<u32>>& tokens) {
    shape.node_of.assign(tokens.size(), 0);
    shape.unit_bytes = 1024;
    world = std::make_unique<World>(shape);
    call.layout = world->throughput;
    call.shape = row;
    call.geometry = StreamGeometry::make(shape.unit_bytes, 1, row.bytes());
    call.readers = world->max_readers;
    reducer_tokens.assign(tokens.size() * tokens.size(), 0);
    for (u32 g = 0; g < tokens.size(); ++g) reducer_tokens[g] = static_cast<u32>(tokens[g].size());
    call.reducer_tokens = reducer_tokens.data();
    own_payload.resize(tokens[0].size() * row.payload_bytes + 1);
    for (const u32 token : tokens[0]) {
      own_tokens.push_back(static_cast<i32>(token));
      own_weights.insert(own_weights.end(), {static_cast<float>(token), 0.5f});
    }
  }
  const u8* own_row(u32 i) const { return own_payload.data() + u64{i} * row.payload_bytes; }
  // Rank g has written its first `count` rows and raised its tail over whole chunks. Rank 0 need not: it reads its own.
  void contribute(u32 g, const std::vector<u32>& tokens, u64 count) {
    if (g == 0) return;
    const StreamAddress s = contribution_stream(world->context(g), call.layout, g, 0, 0);
    for (u64 i = 0; i < count; ++i) {
      u8* at = const_cast<u8*>(s.unit) + call.geometry.chunk(0, i / call.geometry.rows_per_chunk) +
               i % call.geometry.rows_per_chunk * call.geometry.row_bytes;
      const u32 position = RowHeader::position(i / call.geometry.rows_per_chunk, tokens.size() - 1 - i);
      *reinterpret_cast<RowHeader*>(at) = RowHeader::make(0, tokens[i], position);
      reinterpret_cast<float*>(at + row.weights())[0] = static_cast<float>(100 * g + tokens[i]);
      reinterpret_cast<float*>(at + row.weights())[1] = 0.5f;
    }
    const bool all = count == tokens.size();
    *const_cast<u64*>(s.tail) = all ? call.geometry.num_chunks(count) : count / call.geometry.rows_per_chunk;
  }
  template <class Body>
  void on_warp(Body body) {
    simt::launch({1, simt::kWarp, sizeof(MergeShared), 1, 0}, [&] {
      MergeShared& m = simt::smem<MergeShared>();
      const WaitContext wait = wait_context(world->context(0));
      open_contributions(world->context(0), call, m, 0, 0,
                         OwnRows{own_payload.data(), own_tokens.data(), own_weights.data()});
      if (simt::tid() == 0) m.finished = 0;
      body(m, wait);
      simt::sync_block();
      release_contributions(m);
    });
  }
  template <class Body>
  void on_lane(Body body) {
    on_warp([&](MergeShared& m, const WaitContext& wait) {
      if (simt::tid() == 0) body(m, wait);
    });
  }
};

}  // namespace

TEST(throughput_merge_takes_rows_by_token_then_rank) {
  const std::vector<std::vector<u32>> tokens = {{1, 4, 9, 10}, {}, {0, 4, 5, 10, 11}, {4}};
  Bench bench(tokens);
  for (u32 g = 0; g < 4; ++g) bench.contribute(g, tokens[g], tokens[g].size());
  std::vector<u32> order;
  std::vector<float> sums;
  u32 own = 0;
  bench.on_lane([&](MergeShared& m, const WaitContext& wait) {
    const RankContext& c = bench.world->context(0);
    for (u32 rows = 0; rows < 10;) {
      CHECK(look_ahead(c, wait, bench.call, m, 0, true) == Step::kReady);
      PlanEntry& e = m.plan[0];
      clear_entry(e);
      take_token(bench.call, m, 0, kNoToken, e);
      order.push_back(e.token);
      sums.push_back(sum_weights(bench.row, e, 0));
      if (e.own_row != kNoOwnRow) CHECK(e.rows[e.own_row] == bench.own_row(own++));
      for (u32 i = 1; i < e.num_rows; ++i) CHECK(e.rows[i - 1] != e.rows[i]);
      rows += e.num_rows;
    }
    CHECK(look_ahead(c, wait, bench.call, m, 0, true) == Step::kReady);  // nothing left: nothing to wait for
  });
  CHECK_EQ(own, 4u);
  CHECK(order == (std::vector<u32>{0, 1, 4, 5, 9, 10, 11}));
  CHECK(sums == (std::vector<float>{200, 1, 4 + 204 + 304, 205, 9, 10 + 210, 211}));
  for (u32 g = 0; g < 4; ++g) {  // whole rings were given back
    const StreamAddress s = contribution_stream(bench.world->context(0), bench.call.layout, g, 0, 0);
    CHECK_EQ(s.heads[0], g == 0 ? 0 : bench.call.geometry.num_chunks(tokens[g].size()));
  }
}

// What a GPU's warp fetches before a batch changes nothing about the plan: random contributions, batches of any size,
// chunks that arrive between them.
TEST(throughput_merge_fetches_ahead_what_planning_would_find) {
  for (u64 seed = 1; seed <= 12; ++seed) {
    std::vector<std::vector<u32>> tokens(1 + seed % 5);
    for (u32 t = 0; t < 90; ++t)
      for (u32 g = 0; g < tokens.size(); ++g)
        if (mix(seed << 32 ^ t << 8 ^ g) % 3 == 0) tokens[g].push_back(t);
    std::vector<u32> plans[2];
    for (const bool fetching : {false, true}) {
      Bench bench(tokens);
      std::vector<u64> here(tokens.size(), 0);
      u64 total = 0, draw = seed;
      for (const auto& list : tokens) total += list.size();
      const u64 chunk = bench.call.geometry.rows_per_chunk;
      const auto ready = [&](const RankContext& c, const WaitContext& wait, MergeShared& m) {
        return Step::kReady == (fetching ? look_ahead<true>(c, wait, bench.call, m, 0, false)
                                         : look_ahead<false>(c, wait, bench.call, m, 0, false));
      };
      bench.on_warp([&](MergeShared& m, const WaitContext& wait) {
        const RankContext& c = bench.world->context(0);
        for (u64 planned = 0; planned < total;) {
          if (simt::lane() == 0)
            for (u32 g = 0; g < tokens.size(); ++g)
              if (here[g] < tokens[g].size() && mix(++draw) % 2) {
                const u64 room = (m.from[g].released + bench.call.geometry.num_slots) * chunk;
                here[g] =
                    std::min<u64>({here[g] + chunk * (1 + mix(draw) % 2), tokens[g].size(), g == 0 ? ~0ull : room});
                bench.contribute(g, tokens[g], here[g]);
              }
          simt::sync_warp();
          if (fetching) look_around(bench.call, m, 0);
          if (simt::lane() == 0)
            for (m.count = 0; m.count < kMaxPlan && ready(c, wait, m);) {
              PlanEntry& e = m.plan[m.count];
              clear_entry(e);
              take_token(bench.call, m, 0, kNoToken, e);
              if (e.num_rows == 0) break;
              ++m.count;
              plans[fetching].push_back(e.token);
              plans[fetching].push_back(e.own_row);
              for (u32 i = 0; i < e.num_rows; ++i)
                if (i != e.own_row) plans[fetching].push_back(static_cast<u32>(weights_in(bench.row, e.rows[i])[0]));
              plans[fetching].push_back(static_cast<u32>(sum_weights(bench.row, e, 0)));
              m.finished += e.num_rows;
            }
          planned += simt::shfl(m.finished, 0);
          simt::sync_warp();
          if (simt::lane() == 0) m.finished = 0;
          release_contributions(m);
          simt::sync_warp();
        }
      });
      CHECK(!bench.world->aborted(0));
    }
    CHECK(plans[0] == plans[1]);
    CHECK(plans[0].size() > 40);
  }
}

namespace {

// Rank 0's tokens and who has a row of each; contributions come chunk by chunk while it plans. With `by_lanes` a warp plans
// where it can. What is planned, until all is or the call has failed.
std::vector<u32> planned(Bench& bench, const std::vector<std::vector<u32>>& tokens, const std::vector<u8>& in_rank,
                         u64 draw, bool by_lanes) {
  CombineArgs a{};
  a.rank = bench.world->context(0);
  a.call = bench.call;
  a.call.is_token_in_rank = in_rank.data();
  a.call.share_rows = by_lanes;
  const u32 end = static_cast<u32>(in_rank.size() / tokens.size()), chunk = bench.call.geometry.rows_per_chunk;
  std::vector<u64> here(tokens.size(), 0);
  std::vector<u32> plan;
  simt::launch({1, simt::kWarp, CombineShared::bytes(1), 1, 0}, [&] {
    CombineShared& s = simt::smem<CombineShared>();
    const WaitContext wait = wait_context(a.rank);
    open_contributions(a.rank, a.call, s.merge, 0, 0,
                       OwnRows{bench.own_payload.data(), bench.own_tokens.data(), bench.own_weights.data()});
    if (simt::lane() == 0) s.cursor = 0;
    simt::sync_warp();
    while (simt::shfl(s.cursor, 0) < end && simt::shfl(s.merge.ok, 0) != 0) {
      if (simt::lane() == 0)  // of each rank at least the next row is here: nobody else would bring it
        for (u32 g = 0; g < tokens.size(); ++g) {
          const Contribution& k = s.merge.from[g];
          const bool next_is_here = here[g] > tokens[g].size() - k.remaining;
          if (here[g] == tokens[g].size() || (next_is_here && mix(++draw) % 2)) continue;
          const u64 room = g == 0 ? ~0ull : (k.released + bench.call.geometry.num_slots) * chunk;
          here[g] = std::min<u64>({here[g] + chunk * (1 + mix(draw) % 2), tokens[g].size(), room});
          bench.contribute(g, tokens[g], here[g]);
        }
      simt::sync_warp();
      look_around(a.call, s.merge, 0);
      find_takers(a, s, end);
      const bool done = plans_side_by_side(a, s.merge) && plan_side_by_side(a, s, 0, end);
      CHECK(!done || by_lanes);
      if (!done && simt::lane() == 0) plan_own(a, wait, s, 0, end);
      simt::sync_warp();
      if (simt::lane() == 0)
        for (u32 i = 0; i < s.merge.count; ++i) {
          const PlanEntry& e = s.merge.plan[i];
          plan.insert(plan.end(), {e.token, e.own_row, e.num_rows, static_cast<u32>(sum_weights(bench.row, e, 0))});
          for (u32 r = 0; r < e.num_rows; ++r)
            plan.push_back(r == e.own_row ? static_cast<u32>(e.rows[r] - bench.own_row(0))
                                          : static_cast<u32>(weights_in(bench.row, e.rows[r])[0]));
        }
      simt::sync_warp();
      release_contributions(s.merge);
    }
  });
  return plan;
}

}  // namespace

// A lane a token or one lane for all: the plan is the same, and so is what is refused.
TEST(throughput_merge_plans_side_by_side_what_one_lane_would) {
  for (u64 seed = 1; seed <= 12; ++seed) {
    const u32 ranks = static_cast<u32>(1 + seed % 5), num_tokens = 90;
    std::vector<std::vector<u32>> tokens(ranks);
    std::vector<u8> in_rank(num_tokens * ranks, 0);
    for (u32 t = 0; t < num_tokens; ++t)
      for (u32 g = 0; g < ranks; ++g)
        if (mix(seed << 32 ^ t << 8 ^ g) % 3 != 0) {
          tokens[g].push_back(t);
          in_rank[t * ranks + g] = 1;
        }
    std::vector<u32> plans[2];
    for (const bool by_lanes : {false, true}) {
      Bench bench(tokens);
      plans[by_lanes] = planned(bench, tokens, in_rank, seed, by_lanes);
      CHECK(!bench.world->aborted(0));
    }
    CHECK(plans[0] == plans[1]);
    CHECK(plans[0].size() > 4 * 89);
    const u32 who = static_cast<u32>(mix(seed) % ranks);
    const auto takers = [&](u32 t) { return std::count(&in_rank[t * ranks], &in_rank[t * ranks] + ranks, 1); };
    u32 wrong = 40 + static_cast<u32>(seed);
    while (in_rank[wrong * ranks + who] != 0 && takers(wrong) == 1)
      ++wrong;  // a token that nobody takes is not looked at
    in_rank[wrong * ranks + who] ^= 1;  // a row too many, or one that is not there
    for (const bool by_lanes : {false, true}) {
      Bench bench(tokens);
      plans[by_lanes] = planned(bench, tokens, in_rank, seed, by_lanes);
      const Fault f = bench.world->fault(0);
      CHECK(f.kind == FaultKind::kBadArrival && f.phase == WaitPhase::kCombineReceive);
      CHECK_EQ(f.peer, who);
      CHECK_EQ(f.expected, wrong);
    }
    CHECK(plans[0] == plans[1]);
  }
}

// A lane whose warp fetches tokens for it waits until rows are there, and leaves it to the warp to read them.
TEST(throughput_merge_looks_around_once_more_after_it_has_waited) {
  const std::vector<std::vector<u32>> tokens = {{2}, {2, 3}, {}};
  Bench bench(tokens);
  bench.on_warp([&](MergeShared& m, const WaitContext& wait) {
    const RankContext& c = bench.world->context(0);
    const auto look = [&](bool may_wait) { return look_ahead<true>(c, wait, bench.call, m, 0, may_wait); };
    look_around(bench.call, m, 0);
    if (simt::lane() == 0) {
      CHECK(look(false) == Step::kNotYet);  // its own row is known, rank 1's is not there
      bench.contribute(1, tokens[1], 2);
      CHECK(look(false) == Step::kNotYet);
      CHECK(look(true) == Step::kNotYet);
      CHECK(m.from[0].ready == 1 && m.from[1].ready == 0);
    }
    simt::sync_warp();
    look_around(bench.call, m, 0);
    if (simt::lane() == 0) {
      CHECK(look(false) == Step::kReady);
      CHECK_EQ(m.from[1].token, 2u);
    }
  });
  CHECK(!bench.world->aborted(0));
}

TEST(throughput_merge_asks_for_a_named_token) {
  const std::vector<std::vector<u32>> tokens = {{2, 3}, {3}};
  Bench bench(tokens);
  for (u32 g = 0; g < 2; ++g) bench.contribute(g, tokens[g], tokens[g].size());
  bench.on_lane([&](MergeShared& m, const WaitContext& wait) {
    const RankContext& c = bench.world->context(0);
    CHECK(look_ahead(c, wait, bench.call, m, 0, true) == Step::kReady);
    PlanEntry& e = m.plan[0];
    clear_entry(e);
    take_token(bench.call, m, 0, 2, e);
    CHECK_EQ(e.num_rows, 1u);
    CHECK(look_ahead(c, wait, bench.call, m, 0, true) == Step::kReady);
    clear_entry(e);
    take_token(bench.call, m, 0, 3, e);
    CHECK_EQ(e.num_rows, 2u);
  });
}

TEST(throughput_merge_does_not_wait_while_it_holds_rows) {
  const std::vector<u32> many = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19};
  Bench bench({many, many});
  const u32 chunk = bench.call.geometry.rows_per_chunk;
  bench.contribute(0, many, many.size());
  bench.contribute(1, many, chunk);  // one chunk of rank 1, the rest is still to come
  u32 planned = 0;
  bench.on_lane([&](MergeShared& m, const WaitContext& wait) {
    const RankContext& c = bench.world->context(0);
    while (look_ahead(c, wait, bench.call, m, 0, false) == Step::kReady) {
      PlanEntry& e = m.plan[0];
      clear_entry(e);
      take_token(bench.call, m, 0, kNoToken, e);
      CHECK_EQ(e.num_rows, 2u);
      ++planned;
    }
  });
  CHECK_EQ(planned, chunk);
  CHECK(!bench.world->aborted(0));
}

TEST(throughput_merge_wait_ends_at_the_deadline) {
  Bench bench({{0}, {0}});
  bench.shape.timeout_ns = 50'000'000;
  bench.world = std::make_unique<World>(bench.shape);
  bench.contribute(0, {0}, 1);
  bench.on_lane([&](MergeShared& m, const WaitContext& wait) {
    CHECK(look_ahead(bench.world->context(0), wait, bench.call, m, 0, true) == Step::kFailed);
  });
  const Fault f = bench.world->fault(0);
  CHECK(f.kind == FaultKind::kTimeout && f.phase == WaitPhase::kCombineReceive);
  CHECK_EQ(f.peer, 1u);
  CHECK_EQ(f.expected, 1u);
}

// A peer's words that cannot be: each ends the call at once, naming the peer.
TEST(throughput_merge_refuses_rows_that_cannot_stand_there) {
  const std::vector<std::vector<u32>> tokens = {{2, 3}, {2, 3, 4}};
  for (u32 word = 0; word < 6; ++word) {  // four of a header; a tail beyond the ring; tokens that do not ascend
    Bench bench(tokens);
    bench.contribute(1, word == 5 ? std::vector<u32>{2, 3, 3} : tokens[1], 3);
    const StreamAddress s = contribution_stream(bench.world->context(0), bench.call.layout, 1, 0, 0);
    if (word < 4) reinterpret_cast<u32*>(const_cast<u8*>(s.unit) + bench.call.geometry.row_bytes)[word] ^= 0x40;
    if (word == 4) *const_cast<u64*>(s.tail) = bench.call.geometry.num_slots + 1;
    u32 taken = 0;
    bench.on_lane([&](MergeShared& m, const WaitContext& wait) {
      const RankContext& c = bench.world->context(0);
      while (taken < 9 && look_ahead(c, wait, bench.call, m, 0, true) == Step::kReady) {
        clear_entry(m.plan[0]);
        take_token(bench.call, m, 0, kNoToken, m.plan[0]);
        ++taken;
      }
    });
    CHECK_EQ(taken, word < 4 ? 1u : word == 4 ? 0u : 2u);
    const Fault f = bench.world->fault(0);
    CHECK(f.kind == FaultKind::kBadArrival && f.phase == WaitPhase::kCombineReceive);
    CHECK_EQ(f.peer, 1u);
    CHECK_EQ(f.detail.word, DetailWord(0u).word);
  }
}

TEST(throughput_merge_finds_no_payload_outside_an_arena) {
  alignas(16) u8 arena[64] = {}, row[32] = {};
  const u8* const memories[] = {arena, arena, reinterpret_cast<const u8*>(64), reinterpret_cast<const u8*>(48)};
  const Arenas in{memories, 2, 16};
  const auto at = [&](u64 place) {
    reinterpret_cast<RowHeader*>(row)->destinations = place;
    return reinterpret_cast<const u8*>(payload_of(row, in));
  };
  CHECK(at(0) == row + sizeof(RowHeader));
  CHECK(at(RowPlace::in_arena(0, 48)) == arena + 48);
  CHECK(at(RowPlace::in_arena(1, 32)) == arena + 32);
  CHECK(at(RowPlace::in_arena(1, 34)) == nullptr);  // its last bytes are beyond
  CHECK(at(RowPlace::in_arena(0, 50)) == nullptr && at(RowPlace::in_arena(0, 1)) == nullptr);
  CHECK(at(RowPlace::in_arena(0, low_bits(RowPlace::kOffsetBits))) == nullptr);
  CHECK(at(RowPlace::in_arena(2, 0)) == nullptr && at(8) == nullptr && at(~0ull) == nullptr);
}
