// Rows that other cores read: which way they are stored follows what was timed, and the bytes are right either way.
#include <cstring>
#include <vector>

#include "kernels/host/shared_store.h"
#include "native/check.h"

namespace uccl::simt::host {
namespace {

struct Costs {
  u64 through, past;
};

struct Counts {
  u32 past = 0, timed = 0, timed_past = 0;
};

// One period's rows on a machine where they cost this.
Counts period(StoreChoice& choice, Costs costs) {
  Counts counts;
  for (u32 i = 0; i < StoreChoice::kPeriod; ++i) {
    const StoreChoice::Turn turn = choice.next();
    counts.past += turn.past;
    counts.timed += turn.timed;
    counts.timed_past += turn.timed && turn.past;
    if (turn.timed) choice.took(turn.past, turn.past ? costs.past : costs.through);
  }
  return counts;
}

constexpr Costs kOneCache{70, 90}, kTwoCaches{410, 90};
constexpr u32 kOthers = StoreChoice::kPeriod / StoreChoice::kOtherEvery;

}  // namespace

TEST(shared_store_tries_both_ways_and_times_few_rows) {
  StoreChoice choice;
  const Counts counts = period(choice, kOneCache);
  CHECK_EQ(counts.past, kOthers);
  CHECK_EQ(counts.timed_past, kOthers);  // the other way is always timed
  CHECK_EQ(counts.timed, StoreChoice::kPeriod / StoreChoice::kTimedEvery);
}

TEST(shared_store_follows_a_machine_that_changes) {
  StoreChoice choice;
  for (u32 round = 0; round < 3; ++round) {
    period(choice, kOneCache);
    CHECK_EQ(period(choice, kTwoCaches).past, kOthers);  // it learns during this period
    CHECK_EQ(period(choice, kTwoCaches).past, StoreChoice::kPeriod - kOthers);
    CHECK_EQ(period(choice, kOneCache).past, StoreChoice::kPeriod - kOthers);
    CHECK_EQ(period(choice, kOneCache).past, kOthers);
  }
}

TEST(shared_store_stays_in_the_caches_until_they_are_clearly_slower) {
  StoreChoice choice;
  for (const Costs costs : {Costs{90, 90}, Costs{150, 90}, Costs{180, 90}}) {
    period(choice, costs);
    CHECK_EQ(period(choice, costs).past, kOthers);
  }
}

TEST(shared_store_does_not_mind_single_slow_rows) {
  StoreChoice choice;
  u32 timed = 0;
  for (u32 i = 0; i < 4 * StoreChoice::kPeriod; ++i) {
    const StoreChoice::Turn turn = choice.next();
    CHECK(turn.past == (i % StoreChoice::kOtherEvery == 0));
    if (turn.timed) choice.took(turn.past, ++timed % 5 == 0 ? 70 : 3'000'000);
  }
}

TEST(shared_store_with_one_way_untimed_stays_as_it_is) {
  StoreChoice choice;
  for (u32 i = 0; i < 2 * StoreChoice::kPeriod; ++i) {
    const StoreChoice::Turn turn = choice.next();
    if (turn.timed && !turn.past) choice.took(false, 410);
    CHECK(turn.past == (i % StoreChoice::kOtherEvery == 0));
  }
}

TEST(shared_store_copies_these_bytes_and_no_others) {
  const std::vector<u64> sizes{0, 16, 4080, kTimedRowBytes, 14336};
  alignas(64) static u8 from[14336 + 64], to[14336 + 64];
  for (u32 i = 0; i < sizeof from; ++i) from[i] = static_cast<u8>(i * 31 + 7);
  for (u32 round = 0; round < 2 * StoreChoice::kPeriod; ++round) {
    const u64 bytes = sizes[round % sizes.size()];
    std::memset(to, 0xee, sizeof to);
    store_shared(to + 16, from + 32, bytes);
    CHECK(std::memcmp(to + 16, from + 32, bytes) == 0);
    for (u64 i = 0; i < 64; ++i) CHECK_EQ(to[i < 16 ? i : bytes + i], 0xee);
  }
}

}  // namespace uccl::simt::host
