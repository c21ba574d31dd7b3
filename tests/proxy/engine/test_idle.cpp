// The idle ladder: awake first, for as long as that has paid; then naps that double up to their most.
#include "engine/idle.h"
#include "engine/words.h"
#include "native/check.h"

using namespace uccl;

namespace {

// Turns until the first nap.
u32 awake(IdleLadder& idle) {
  for (u32 turns = 0; turns < 1000; ++turns)
    if (idle.rest()) return turns;
  return 1000;
}

}  // namespace

TEST(engine_idle_stays_awake_half_as_long_after_each_wait_in_vain) {
  IdleLadder idle(true, 50'000);
  for (u32 turns = IdleLadder::kMostTurns; turns > IdleLadder::kFewestTurns; turns /= 2) {
    CHECK_EQ(awake(idle), turns);
    for (int i = 0; i < 10; ++i) CHECK(idle.rest());
    idle.reset();
  }
  for (int i = 0; i < 3; ++i) {
    CHECK_EQ(awake(idle), IdleLadder::kFewestTurns);
    idle.reset();
  }
}

TEST(engine_idle_stays_awake_longer_when_work_comes_late_but_comes) {
  IdleLadder idle(true, 50'000);
  for (int i = 0; i < 10; ++i) {  // down to the fewest
    awake(idle);
    idle.reset();
  }
  for (u32 turns = IdleLadder::kFewestTurns; turns <= IdleLadder::kMostTurns; turns *= 2) {
    idle.rest();  // at once: as before
    idle.reset();
    for (u32 i = 0; i < turns; ++i) CHECK(!idle.rest());
    idle.reset();
  }
  CHECK_EQ(awake(idle), IdleLadder::kMostTurns);
}

TEST(engine_idle_learns_nothing_from_turns_that_all_worked) {
  IdleLadder idle(true, 50'000);
  for (int i = 0; i < 10; ++i) idle.reset();
  CHECK_EQ(awake(idle), IdleLadder::kMostTurns);
}

TEST(engine_idle_never_naps_when_told_not_to) {
  IdleLadder idle(false, 50'000);
  IdleLadder no_time(true, 0);
  for (int i = 0; i < 2000; ++i) CHECK(!idle.rest() && !no_time.rest());
}

TEST(engine_idle_naps_really_sleep) {
  IdleLadder idle(true, 2'000'000);
  IdleLadder::prepare_thread();
  for (u32 i = 0; i < IdleLadder::kMostTurns + 12; ++i) idle.rest();  // doubled to the most by now
  const u64 before = steady_ns();
  CHECK(idle.rest());
  CHECK(steady_ns() - before >= 1'900'000);
}
