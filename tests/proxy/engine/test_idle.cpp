// The idle ladder: awake first, for as long as that has paid; then naps that double up to their most; then sleep, until
// the doorbell rings.
#include <array>
#include <thread>

#include "engine/idle.h"
#include "native/check.h"

using namespace uccl;

namespace {

using Rest = IdleLadder::Rest;

// A ladder and the words that its rank's host rings.
struct Idle {
  Idle(bool may_nap, u64 nap_ns, bool lonely = false) : ladder(may_nap, nap_ns, lonely) {}
  bool rest() { return ladder.rest(bell) != Rest::kAwake; }
  void reset() { ladder.reset(); }

  alignas(64) std::array<u8, ControlLayout::kTables> control{};
  Doorbell bell{control.data()};
  IdleLadder ladder;
};

// Turns until the first nap.
u32 awake(Idle& idle) {
  for (u32 turns = 0; turns < 1000; ++turns)
    if (idle.rest()) return turns;
  return 1000;
}

// Rests until it would be asleep, had it been told nothing; the last rung.
Rest rest_for_long(Idle& idle) {
  awake(idle);
  const u64 end = steady_ns() + IdleLadder::kAsleepAfterNs;
  Rest rest = Rest::kNap;
  while (steady_ns() < end) rest = idle.ladder.rest(idle.bell);
  return idle.ladder.rest(idle.bell) == Rest::kSleep ? Rest::kSleep : rest;
}

}  // namespace

TEST(engine_idle_stays_awake_half_as_long_after_each_wait_in_vain) {
  Idle idle(true, 50'000);
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
  Idle idle(true, 50'000);
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
  Idle idle(true, 50'000);
  for (int i = 0; i < 10; ++i) idle.reset();
  CHECK_EQ(awake(idle), IdleLadder::kMostTurns);
}

TEST(engine_idle_never_naps_when_told_not_to) {
  Idle idle(false, 50'000);
  Idle no_time(true, 0);
  for (int i = 0; i < 2000; ++i) CHECK(!idle.rest() && !no_time.rest());
}

TEST(engine_idle_without_naps_sleeps_when_its_rank_has_stopped_working) {
  Idle idle(false, 50'000);
  u64 now_ns = 1;
  simulated_ns = &now_ns;
  CHECK_EQ(awake(idle), 1000u);
  now_ns += IdleLadder::kAsleepWithoutNapsAfterNs - 1;
  CHECK(!idle.rest());
  Doorbell::ring(idle.control.data());  // a call that gives the proxy nothing to do
  CHECK(!idle.rest());
  ++now_ns;
  CHECK(!idle.rest());
  now_ns += IdleLadder::kAsleepWithoutNapsAfterNs;
  CHECK(idle.ladder.rest(idle.bell) == Rest::kSleep);
  Doorbell::ring(idle.control.data());
  CHECK_EQ(awake(idle), 1000u);
  Doorbell::keep_awake(idle.control.data());  // graphs are replayed
  now_ns += 2 * IdleLadder::kAsleepWithoutNapsAfterNs;
  CHECK(!idle.rest());
  simulated_ns = nullptr;
}

TEST(engine_idle_naps_really_sleep) {
  Idle idle(true, 2'000'000);
  IdleLadder::prepare_thread();
  for (u32 i = 0; i < IdleLadder::kMostTurns + 12; ++i) idle.rest();  // doubled to the most by now
  const u64 before = steady_ns();
  CHECK(idle.rest());
  CHECK(steady_ns() - before >= 1'900'000);
}

TEST(engine_idle_sleeps_when_nothing_has_happened_for_long) {
  Idle idle(true, 50'000);
  CHECK(rest_for_long(idle) == Rest::kSleep);
  const u64 before = steady_ns();
  CHECK(idle.ladder.rest(idle.bell) == Rest::kSleep);
  CHECK(steady_ns() - before >= IdleLadder::kSleepNs * 9 / 10);
  idle.reset();  // work came
  CHECK_EQ(awake(idle), IdleLadder::kMostTurns / 2);
  CHECK(idle.ladder.rest(idle.bell) == Rest::kNap);
}

TEST(engine_idle_takes_no_notice_of_the_doorbell_while_it_naps) {
  Idle idle(true, 50'000);
  awake(idle);
  Doorbell::ring(idle.control.data());
  CHECK(idle.ladder.rest(idle.bell) == Rest::kNap);
}

TEST(engine_idle_without_peers_naps_as_long_as_others_sleep) {
  Idle idle(true, 50'000, true);
  awake(idle);
  for (u32 i = 0; i < 12; ++i) CHECK(idle.ladder.rest(idle.bell) == Rest::kNap);
  Doorbell::ring(idle.control.data());
  const u64 before = steady_ns();
  CHECK(idle.ladder.rest(idle.bell) == Rest::kNap);
  CHECK(steady_ns() - before >= IdleLadder::kSleepNs * 9 / 10);
}

TEST(engine_idle_wakes_when_the_doorbell_rings_and_learns_nothing_from_it) {
  Idle idle(true, 50'000);
  CHECK(rest_for_long(idle) == Rest::kSleep);
  Doorbell::ring(idle.control.data());
  CHECK_EQ(awake(idle), IdleLadder::kMostTurns);
  CHECK(idle.ladder.rest(idle.bell) == Rest::kNap);
}

TEST(engine_idle_never_sleeps_long_where_commands_come_unannounced) {
  Idle idle(true, 50'000);
  Doorbell::keep_awake(idle.control.data());
  CHECK(rest_for_long(idle) == Rest::kNap);
}
