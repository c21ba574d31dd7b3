// Per-channel order in random arrival orders past the wraps of the position field; duplicates; credits.
#include <algorithm>
#include <random>

#include "engine/sequences.h"
#include "native/check.h"
#include "proxy/engine/rank_memory.h"

using namespace uccl;
using namespace uccl::testing;

TEST(engine_sequences_random_order_past_every_wrap) {
  for (const u64 base : {0ull, (1ull << 32) - 5000})
    for (const u64 window : {1ull, 2ull, 64ull, u64{kMaxSequenceInFlight}}) {
      RankMemory rank(Shape{});
      const u64 offset = rank.layout.tail(Direction::kCombine, 3, 2);
      rank.set_word(offset, base);
      WorkerCounters counters{};
      Sequences sequences(rank.control(), rank.layout, counters);
      std::mt19937 random(static_cast<u32>(window));
      std::vector<u64> in_flight;
      std::vector<bool> arrived(8000, false);
      u64 sent = base, tail = base, deepest = 0, parked = 0, held = 0;
      while (tail < base + 8000) {
        // The sender's bound: nothing further ahead of the oldest open chunk than the window.
        const u64 oldest = in_flight.empty() ? sent : *std::min_element(in_flight.begin(), in_flight.end());
        if (sent < base + 8000 && sent - oldest < window && random() % 4) {
          in_flight.push_back(sent++);
          continue;
        }
        if (in_flight.empty()) continue;
        std::swap(in_flight[random() % in_flight.size()], in_flight.back());
        const u64 n = in_flight.back();
        in_flight.pop_back();
        CHECK(sequences.chunk(3, stream_key(Direction::kCombine, 2, n)).outcome == Outcome::kApplied);
        arrived[n - base] = true;
        if (n != tail) ++parked, deepest = std::max(deepest, ++held);
        if (n == tail)
          for (++tail; tail < base + 8000 && arrived[tail - base]; ++tail) --held;
        CHECK_EQ(rank.word(offset), tail);
      }
      CHECK_EQ(counters.parked, parked);
      CHECK_EQ(counters.deepest_reorder, deepest);
      if (window > 2) CHECK(deepest > 1);
    }
}

TEST(engine_sequences_streams_do_not_touch_each_other) {
  RankMemory rank(Shape{.num_ranks = 3, .num_channels = 5});
  WorkerCounters counters{};
  Sequences sequences(rank.control(), rank.layout, counters);
  std::mt19937 random(8);
  u64 sent[2][3][5] = {};
  for (int i = 0; i < 20000; ++i) {
    const u32 d = random() % 2, s = random() % 3, c = random() % 5;
    sequences.chunk(s, stream_key(static_cast<Direction>(d), c, sent[d][s][c]++));
  }
  for (u32 d = 0; d < 2; ++d)
    for (u32 s = 0; s < 3; ++s)
      for (u32 c = 0; c < 5; ++c) CHECK_EQ(rank.tail(static_cast<Direction>(d), s, c), sent[d][s][c]);
  CHECK_EQ(counters.parked, 0ull);
}

TEST(engine_sequences_duplicates_and_the_past_are_stale) {
  RankMemory rank(Shape{});
  WorkerCounters counters{};
  Sequences sequences(rank.control(), rank.layout, counters);
  const auto chunk = [&](u64 n) { return sequences.chunk(1, stream_key(Direction::kDispatch, 0, n)).outcome; };
  CHECK(chunk(0) == Outcome::kApplied);
  CHECK(chunk(0) == Outcome::kStale);
  CHECK(chunk(5) == Outcome::kApplied);
  CHECK(chunk(5) == Outcome::kStale);
  CHECK(chunk(1 + kMaxSequenceInFlight) == Outcome::kStale);  // one further than any sender is ahead
  CHECK(chunk(kMaxSequenceInFlight) == Outcome::kApplied);    // the furthest
  CHECK_EQ(rank.tail(Direction::kDispatch, 1, 0), 1ull);
  for (u64 n = 1; n < kMaxSequenceInFlight; ++n) CHECK(chunk(n) == (n == 5 ? Outcome::kStale : Outcome::kApplied));
  CHECK_EQ(rank.tail(Direction::kDispatch, 1, 0), u64{kMaxSequenceInFlight} + 1);
  CHECK(chunk(kMaxSequenceInFlight) == Outcome::kStale);
}

TEST(engine_sequences_channels_beyond_the_group_are_refused) {
  RankMemory rank(Shape{.num_channels = 3});
  WorkerCounters counters{};
  Sequences sequences(rank.control(), rank.layout, counters);
  for (const u32 channel : {3u, 63u}) {
    const u32 key = stream_key(Direction::kCombine, channel, 0);
    CHECK(sequences.chunk(1, key).outcome == Outcome::kRefused);
    const Verdict v = sequences.credit(1, key);
    CHECK(v.outcome == Outcome::kRefused);
    CHECK_EQ(v.expected, 3ull);
    CHECK_EQ(v.seen, u64{channel});
  }
}

TEST(engine_sequences_credits_only_go_forward) {
  for (const u64 base : {0ull, 1000ull, (1ull << 32) - 700}) {
    RankMemory rank(Shape{});
    rank.set_word(rank.layout.credit(Direction::kDispatch, 2, 1), base);
    WorkerCounters counters{};
    Sequences sequences(rank.control(), rank.layout, counters);
    std::mt19937 random(5);
    u64 sent = base, highest = base, overtaken = 0;
    for (int batch = 0; batch < 2500; ++batch) {
      std::vector<u64> in_flight;  // together less than half the field: what a CreditGate lets out
      for (int i = 0; i < 8; ++i) in_flight.push_back(sent += random() % 60);
      std::shuffle(in_flight.begin(), in_flight.end(), random);
      for (const u64 head : in_flight) {
        const Verdict v = sequences.credit(2, stream_key(Direction::kDispatch, 1, head));
        CHECK(v.outcome == (head > highest ? Outcome::kApplied : Outcome::kOvertaken));
        overtaken += head < highest;
        highest = std::max(highest, head);
        CHECK_EQ(rank.credit(Direction::kDispatch, 2, 1), highest);
      }
    }
    CHECK(highest > base + 10 * 1024);
    CHECK(overtaken > 1000);
    CHECK_EQ(rank.credit(Direction::kCombine, 2, 1), 0ull);
  }
}

TEST(engine_sequences_tell_how_many_chunks_wait_for_their_turn) {
  RankMemory rank(Shape{});
  WorkerCounters counters{};
  Sequences sequences(rank.control(), rank.layout, counters);
  const auto parked = [&](u32 channel, u64 n) {
    return sequences.chunk(1, stream_key(Direction::kDispatch, channel, n)).parked;
  };
  CHECK_EQ(parked(0, 2), 1);
  CHECK_EQ(parked(0, 1), 1);
  CHECK_EQ(parked(0, 4), 1);
  CHECK_EQ(parked(0, 4), 0);   // a duplicate waits for nothing
  CHECK_EQ(parked(1, 0), 0);   // another channel
  CHECK_EQ(parked(0, 0), -2);  // 1 and 2 follow, 4 goes on waiting for 3
  CHECK_EQ(parked(0, 3), -1);
  std::mt19937 random(5);
  std::vector<u64> order(500);
  for (u64 i = 0; i < order.size(); ++i) order[i] = i;
  for (u64 i = 0; i + 8 <= order.size(); i += 8) std::shuffle(order.begin() + i, order.begin() + i + 8, random);
  i64 sum = 0;
  for (const u64 n : order) {
    sum += parked(2, n);
    CHECK(sum >= 0 && sum < 8);
  }
  CHECK_EQ(sum, 0);
}
