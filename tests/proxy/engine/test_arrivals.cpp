// Partial completion: every permutation of small cases, neighbouring epochs mixed, stale ones dropped, wraps of the
// epoch field, and what no correct peer sends.
#include <algorithm>
#include <random>

#include "native/check.h"
#include "proxy/engine/rank_memory.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

struct Message {
  u64 epoch;
  bool expect;
  auto operator<=>(const Message&) const = default;
};

Verdict hand_in(Arrivals& arrivals, Phase phase, u32 source, const Message& m) {
  const u32 key = epoch_key(phase, m.epoch);
  return m.expect ? arrivals.expect(source, key, 5) : arrivals.arrive(source, key, 5);
}

// The messages of one epoch with n writes.
void append(std::vector<Message>& all, u64 epoch, u64 n) {
  for (u64 i = 0; i < n; ++i) all.push_back({epoch, false});
  all.push_back({epoch, true});
}

// What the flag must be: epochs whose messages are all in, without a gap.
u64 model(u64 published, const std::vector<u64>& missing) {
  for (const u64 m : missing) {
    if (m != 0) break;
    ++published;
  }
  return published;
}

// Hands `order` in and compares the flag with the model after every message.
void play(u64 base, const std::vector<u64>& writes, const std::vector<Message>& order) {
  RankMemory rank(Shape{});
  rank.set_word(rank.layout.flag(Phase::kCombine, 2), base);
  Arrivals arrivals(rank.control(), rank.layout);
  std::vector<u64> missing;
  for (const u64 n : writes) missing.push_back(n + 1);
  for (const Message& m : order) {
    if (m.expect) rank.land_header(Phase::kCombine, m.epoch, 2, writes[m.epoch - base - 1]);
    CHECK(hand_in(arrivals, Phase::kCombine, 2, m).outcome == Outcome::kApplied);
    --missing[m.epoch - base - 1];
    CHECK_EQ(rank.flag(Phase::kCombine, 2), model(base, missing));
  }
  CHECK_EQ(rank.flag(Phase::kCombine, 2), base + writes.size());
  CHECK_EQ(rank.word(rank.layout.flag_time(2)), 5ull);
  CHECK_EQ(rank.flag(Phase::kCombine, 1) + rank.flag(Phase::kDispatch, 2), 0ull);  // nobody else's
}

}  // namespace

TEST(engine_arrivals_every_permutation_of_small_cases) {
  const std::vector<std::vector<u64>> cases = {{0}, {1}, {4}, {0, 0}, {2, 1}, {0, 3}, {1, 0, 1}, {0, 0, 0, 1}};
  for (const u64 base : {0ull, 5ull})
    for (const auto& writes : cases) {
      std::vector<Message> order;
      for (std::size_t i = 0; i < writes.size(); ++i) append(order, base + 1 + i, writes[i]);
      std::sort(order.begin(), order.end());
      do play(base, writes, order);
      while (std::next_permutation(order.begin(), order.end()));
    }
}

TEST(engine_arrivals_random_epochs_past_every_wrap) {
  // Epochs two ahead at most (two buffer sets), in random order, across 2^15 and 2^32.
  for (const u64 base : {0ull, (1ull << kEpochBits) - 1000, (2ull << kEpochBits) - 1000, (1ull << 32) - 1000}) {
    RankMemory rank(Shape{});
    rank.set_word(rank.layout.flag(Phase::kDispatch, 1), base);
    Arrivals arrivals(rank.control(), rank.layout);
    std::mt19937 random(static_cast<u32>(base) + 3);
    for (u64 e = base + 1; e < base + 2000; e += 2) {
      const u64 n[2] = {random() % 20, random() % 3};
      std::vector<Message> order;
      append(order, e, n[0]);
      append(order, e + 1, n[1]);
      std::shuffle(order.begin(), order.end(), random);
      for (const Message& m : order) {
        if (m.expect) rank.land_header(Phase::kDispatch, m.epoch, 1, n[m.epoch - e]);
        CHECK(hand_in(arrivals, Phase::kDispatch, 1, m).outcome == Outcome::kApplied);
      }
      CHECK_EQ(rank.flag(Phase::kDispatch, 1), e + 1);
    }
  }
}

TEST(engine_arrivals_every_epoch_from_one_past_the_field) {
  RankMemory rank(Shape{});
  Arrivals arrivals(rank.control(), rank.layout);
  for (u64 e = 1; e <= (2ull << kEpochBits) + 7; ++e) {
    rank.land_header(Phase::kCounts, e, 3, 1);
    hand_in(arrivals, Phase::kCounts, 3, {e, false});
    CHECK_EQ(rank.flag(Phase::kCounts, 3), e - 1);
    hand_in(arrivals, Phase::kCounts, 3, {e, true});
    CHECK_EQ(rank.flag(Phase::kCounts, 3), e);
  }
}

TEST(engine_arrivals_stale_epochs_never_count) {
  for (const u64 base : {0ull, 3ull, 40000ull}) {
    RankMemory rank(Shape{});
    rank.set_word(rank.layout.flag(Phase::kDispatch, 1), base);
    Arrivals arrivals(rank.control(), rank.layout);
    for (const u64 back : {0ull, 1ull, 3ull, 4ull, (1ull << (kEpochBits - 1)) - 1}) {
      CHECK(hand_in(arrivals, Phase::kDispatch, 1, {base - back, false}).outcome == Outcome::kStale);
      CHECK(hand_in(arrivals, Phase::kDispatch, 1, {base - back, true}).outcome == Outcome::kStale);
    }
    rank.land_header(Phase::kDispatch, base + 1, 1, 1);
    CHECK(hand_in(arrivals, Phase::kDispatch, 1, {base + 1, true}).outcome == Outcome::kApplied);
    CHECK_EQ(rank.flag(Phase::kDispatch, 1), base);  // nothing stale stood in for its one write
    CHECK(hand_in(arrivals, Phase::kDispatch, 1, {base + 1, false}).outcome == Outcome::kApplied);
    CHECK_EQ(rank.flag(Phase::kDispatch, 1), base + 1);
  }
}

TEST(engine_arrivals_refuses_what_is_beyond_the_window) {
  RankMemory rank(Shape{});
  Arrivals arrivals(rank.control(), rank.layout);
  CHECK(hand_in(arrivals, Phase::kDispatch, 1, {4, false}).outcome == Outcome::kApplied);
  const Verdict v = hand_in(arrivals, Phase::kDispatch, 1, {5, false});
  CHECK(v.outcome == Outcome::kRefused);
  CHECK_EQ(v.expected, 4ull);
  CHECK_EQ(v.seen, 5ull);
}

// A rank that missed calls counts from its resume word on: what of them is here never becomes a part of a later call, and
// what of the first calls after them came early is kept.
TEST(engine_arrivals_resume_drops_what_was_missed_and_keeps_what_came_early) {
  for (const u64 base : {0ull, 9ull, (1ull << kEpochBits) - 2})
    for (const u64 missed : {0ull, 1ull, 3ull, 4ull, 5ull, 100ull, (1ull << kEpochBits) + 1}) {
      RankMemory rank(Shape{});
      rank.set_word(rank.layout.flag(Phase::kCombine, 1), base);
      Arrivals arrivals(rank.control(), rank.layout);
      for (u64 e = base + 1; e <= base + std::min<u64>(missed, 4); ++e)  // half of each
        CHECK(hand_in(arrivals, Phase::kCombine, 1, {e, false}).outcome == Outcome::kApplied);
      const u64 next = base + missed + 1;
      const bool early = missed + 1 <= Arrivals::kEpochWindow;
      if (early) CHECK(hand_in(arrivals, Phase::kCombine, 1, {next, false}).outcome == Outcome::kApplied);
      rank.set_word(rank.layout.resume(Phase::kCombine, 1), base + missed);
      arrivals.resume(1, 7);
      CHECK_EQ(rank.flag(Phase::kCombine, 1), missed == 0 ? base : next - 1);
      CHECK(hand_in(arrivals, Phase::kCombine, 1, {next - 1, false}).outcome == Outcome::kStale);
      if (!early) hand_in(arrivals, Phase::kCombine, 1, {next, false});
      CHECK_EQ(rank.flag(Phase::kCombine, 1), missed == 0 ? base : next - 1);
      for (u64 e = next; e < next + 6; ++e) {
        if (e != next) CHECK(hand_in(arrivals, Phase::kCombine, 1, {e, false}).outcome == Outcome::kApplied);
        rank.land_header(Phase::kCombine, e, 1, 1);
        CHECK(hand_in(arrivals, Phase::kCombine, 1, {e, true}).outcome == Outcome::kApplied);
        CHECK_EQ(rank.flag(Phase::kCombine, 1), e);
        for (const u64 set : {0ull, 1ull}) CHECK_EQ(rank.word(rank.layout.flag_beside(Phase::kCombine, set, 1)), e);
        arrivals.resume(1, 8);  // an old word changes nothing
      }
      CHECK_EQ(rank.flag(Phase::kCombine, 2) + rank.flag(Phase::kDispatch, 1), 0ull);
    }
}

TEST(engine_arrivals_resume_publishes_what_is_whole_already) {
  RankMemory rank(Shape{});
  Arrivals arrivals(rank.control(), rank.layout), other(rank.control(), rank.layout);  // of two workers
  for (const u64 e : {3ull, 4ull}) {
    rank.land_header(Phase::kDispatch, e, 1, 1);
    hand_in(arrivals, Phase::kDispatch, 1, {e, true});
    hand_in(arrivals, Phase::kDispatch, 1, {e, false});
  }
  CHECK_EQ(rank.flag(Phase::kDispatch, 1), 0ull);
  rank.set_word(rank.layout.resume(Phase::kDispatch, 1), 2);
  arrivals.resume(1, 5);
  CHECK_EQ(rank.flag(Phase::kDispatch, 1), 4ull);
  other.resume(1, 5);  // which counts nothing of it
  CHECK_EQ(rank.flag(Phase::kDispatch, 1), 4ull);
}

// A key's phase field holds more values than there are phases.
TEST(engine_arrivals_refuses_a_phase_that_is_none) {
  RankMemory rank(Shape{});
  Arrivals arrivals(rank.control(), rank.layout);
  for (u32 phase = kNumPhases; phase < 1u << kPhaseBits; ++phase) {
    for (const bool expect : {false, true}) {
      const Verdict v = hand_in(arrivals, static_cast<Phase>(phase), 1, {1, expect});
      CHECK(v.outcome == Outcome::kRefused);
      CHECK_EQ(v.expected, u64{kNumPhases - 1});
      CHECK_EQ(v.seen, u64{phase});
    }
  }
}

TEST(engine_arrivals_refuses_headers_that_disagree) {
  RankMemory rank(Shape{});
  Arrivals arrivals(rank.control(), rank.layout);
  rank.land_header(Phase::kDispatch, 1, 1, 2);
  Verdict v = hand_in(arrivals, Phase::kDispatch, 1, {3, true});  // the header there is of epoch 1
  CHECK(v.outcome == Outcome::kRefused);
  CHECK_EQ(v.expected, 3ull);
  CHECK_EQ(v.seen, 1ull);
  rank.land_header(Phase::kDispatch, 1 + (1ull << kEpochBits), 1, 2);  // same low bits, another life
  CHECK(hand_in(arrivals, Phase::kDispatch, 1, {1, true}).outcome == Outcome::kRefused);
  rank.land_header(Phase::kDispatch, 1, 1, 2);
  CHECK(hand_in(arrivals, Phase::kDispatch, 1, {1, true}).outcome == Outcome::kApplied);
  CHECK(hand_in(arrivals, Phase::kDispatch, 1, {1, true}).outcome == Outcome::kRefused);  // announced twice
  rank.land_header(Phase::kDispatch, 2, 1, ~0ull);
  CHECK(hand_in(arrivals, Phase::kDispatch, 1, {2, true}).outcome == Outcome::kRefused);
  CHECK_EQ(rank.flag(Phase::kDispatch, 1), 0ull);
}

TEST(engine_arrivals_consumed_words_follow_the_headers_and_never_go_back) {
  RankMemory rank(Shape{});
  Arrivals arrivals(rank.control(), rank.layout);
  const auto announce = [&](Phase phase, u64 epoch, u64 consumed_dispatch, u64 consumed_combine) {
    const ExpectHeader header = ExpectHeader::make(epoch, 5, consumed_dispatch, consumed_combine);
    std::memcpy(rank.control() + rank.layout.expect(phase, epoch, 1), &header, sizeof header);
    return hand_in(arrivals, phase, 1, {epoch, true}).outcome;
  };
  const auto consumed = [&](Phase phase) { return rank.word(rank.layout.consumed(phase, 1)); };
  CHECK(announce(Phase::kDispatch, 2, 7, 4) == Outcome::kApplied);
  CHECK_EQ(consumed(Phase::kDispatch), 7ull);
  CHECK_EQ(consumed(Phase::kCombine), 4ull);
  CHECK(announce(Phase::kDispatch, 1, 6, 3) == Outcome::kApplied);  // sent earlier, came later
  CHECK(announce(Phase::kCombine, 1, 6, 5) == Outcome::kApplied);
  CHECK_EQ(consumed(Phase::kDispatch), 7ull);
  CHECK_EQ(consumed(Phase::kCombine), 5ull);
  CHECK(announce(Phase::kCombine, 1, 90, 90) == Outcome::kRefused);
  CHECK(announce(Phase::kCombine, 0, 90, 90) == Outcome::kStale);
  CHECK_EQ(consumed(Phase::kDispatch), 7ull);
  CHECK_EQ(rank.word(rank.layout.consumed(Phase::kDispatch, 2)), 0ull);
}

TEST(engine_arrivals_refuses_more_writes_than_announced) {
  RankMemory rank(Shape{});
  Arrivals arrivals(rank.control(), rank.layout);
  rank.land_header(Phase::kDispatch, 2, 1, 1);
  CHECK(hand_in(arrivals, Phase::kDispatch, 1, {2, true}).outcome == Outcome::kApplied);
  CHECK(hand_in(arrivals, Phase::kDispatch, 1, {2, false}).outcome == Outcome::kApplied);
  CHECK(hand_in(arrivals, Phase::kDispatch, 1, {2, false}).outcome == Outcome::kRefused);  // complete, not published
  for (int i = 0; i < 3; ++i) hand_in(arrivals, Phase::kDispatch, 1, {1, false});
  rank.land_header(Phase::kDispatch, 1, 1, 2);
  CHECK(hand_in(arrivals, Phase::kDispatch, 1, {1, true}).outcome == Outcome::kRefused);  // counted three already
  CHECK_EQ(rank.flag(Phase::kDispatch, 1), 0ull);
}

TEST(engine_arrivals_progress_is_that_of_the_next_epoch) {
  RankMemory rank(Shape{});
  Arrivals arrivals(rank.control(), rank.layout);
  const auto progress = [&] { return rank.word(rank.layout.progress(Phase::kCombine, 2)); };
  const auto write = [&](u64 epoch) { hand_in(arrivals, Phase::kCombine, 2, {epoch, false}); };
  const auto announce = [&](u64 epoch, u64 writes) {
    rank.land_header(Phase::kCombine, epoch, 2, writes);
    hand_in(arrivals, Phase::kCombine, 2, {epoch, true});
  };
  write(1);
  write(1);
  CHECK_EQ(progress(), 2ull);  // nobody has said yet how many there will be
  write(2);                    // of a later epoch: not what a reader waits for now
  CHECK_EQ(progress(), 2ull);
  announce(1, 3);
  CHECK_EQ(progress(), 3ull << 32 | 2);
  announce(2, 5);
  CHECK_EQ(progress(), 3ull << 32 | 2);
  write(1);
  CHECK_EQ(rank.flag(Phase::kCombine, 2), 1ull);
  CHECK_EQ(progress(), 5ull << 32 | 1);  // what had come early counts at once
  for (int i = 0; i < 4; ++i) write(2);
  CHECK_EQ(rank.flag(Phase::kCombine, 2), 2ull);
  CHECK_EQ(progress(), 0ull);
  for (const u32 source : {0u, 1u, 3u}) CHECK_EQ(rank.word(rank.layout.progress(Phase::kCombine, source)), 0ull);
  CHECK_EQ(rank.word(rank.layout.progress(Phase::kDispatch, 2)), 0ull);
}

TEST(engine_arrivals_raise_the_flags_beside_both_headers_too) {
  RankMemory rank(Shape{});
  Arrivals arrivals(rank.control(), rank.layout);
  for (const u64 epoch : {1ull, 2ull, 3ull}) {
    rank.land_header(Phase::kCombine, epoch, 2, 0);
    arrivals.expect(2, epoch_key(Phase::kCombine, epoch), 10);
    for (const u64 set : {0ull, 1ull})
      CHECK_EQ(rank.word(rank.layout.flag_beside(Phase::kCombine, set, 2)), rank.flag(Phase::kCombine, 2));
    CHECK_EQ(rank.flag(Phase::kCombine, 2), epoch);
  }
  CHECK_EQ(rank.word(rank.layout.flag_beside(Phase::kCombine, 0, 1)), 0ull);  // of another source
  CHECK_EQ(rank.word(rank.layout.flag_beside(Phase::kDispatch, 0, 2)), 0ull);
}

TEST(engine_arrivals_tell_how_long_a_call_took_from_its_first_sign) {
  RankMemory rank(Shape{});
  Arrivals arrivals(rank.control(), rank.layout);
  const auto key = [](u64 epoch) { return epoch_key(Phase::kDispatch, epoch); };
  // A write first, the announcement last; between them the next epoch, whole.
  CHECK_EQ(arrivals.arrive(1, key(1), 1000).arriving_ns, 0ull);
  rank.land_header(Phase::kDispatch, 2, 1, 1);
  CHECK_EQ(arrivals.expect(1, key(2), 1300).arriving_ns, 0ull);
  CHECK_EQ(arrivals.arrive(1, key(2), 1400).arriving_ns, 0ull);
  rank.land_header(Phase::kDispatch, 1, 1, 1);
  CHECK_EQ(arrivals.expect(1, key(1), 2000).arriving_ns, 1000ull + 700);  // raises both flags
  // The announcement first; the window's entry is used anew.
  rank.land_header(Phase::kDispatch, 3, 1, 2);
  CHECK_EQ(arrivals.expect(1, key(3), 5000).arriving_ns, 0ull);
  CHECK_EQ(arrivals.arrive(1, key(3), 5100).arriving_ns, 0ull);
  CHECK_EQ(arrivals.arrive(1, key(3), 5250).arriving_ns, 250ull);
  // Nobody waits for an announcement of what was read.
  rank.land_header(Phase::kSpare, 1, 1, 0);
  CHECK_EQ(arrivals.expect(1, epoch_key(Phase::kSpare, 1), 6000).arriving_ns, 0ull);
  CHECK_EQ(arrivals.arrive(1, epoch_key(Phase::kIdentity, 1), 7000).arriving_ns, 0ull);  // nobody announces it
  CHECK_EQ(arrivals.arrive(1, epoch_key(Phase::kIdentity, 3), 7100).arriving_ns, 0ull);
  CHECK_EQ(arrivals.arrive(1, epoch_key(Phase::kIdentity, 2), 7400).arriving_ns, 300ull);  // raises both flags
}

TEST(engine_arrivals_refuse_an_announcement_of_which_a_bit_was_changed) {
  for (u32 bit = 0; bit < 8 * sizeof(ExpectHeader); ++bit) {
    RankMemory rank(Shape{});
    Arrivals arrivals(rank.control(), rank.layout);
    rank.land_header(Phase::kDispatch, 1, 1, 5);
    rank.control()[rank.layout.expect(Phase::kDispatch, 1, 1) + bit / 8] ^= static_cast<u8>(1u << bit % 8);
    CHECK(hand_in(arrivals, Phase::kDispatch, 1, {1, true}).outcome == Outcome::kRefused);
    CHECK_EQ(rank.word(rank.layout.consumed(Phase::kDispatch, 1)), 0ull);
  }
  RankMemory rank(Shape{});
  Arrivals arrivals(rank.control(), rank.layout);
  rank.land_header(Phase::kSpare, 1, 1, 1);  // it may expect nothing
  CHECK(hand_in(arrivals, Phase::kSpare, 1, {1, true}).outcome == Outcome::kRefused);
}
