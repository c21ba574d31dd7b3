// The idle ladder: pauses and yields first, then naps that double up to their most; work starts it again.
#include "engine/idle.h"
#include "engine/words.h"
#include "native/check.h"

using namespace uccl;

TEST(engine_idle_climbs_and_starts_again) {
  IdleLadder idle(true, 50'000);
  for (int round = 0; round < 2; ++round) {
    for (u32 i = 0; i < IdleLadder::kPauses + IdleLadder::kYields; ++i) CHECK(!idle.rest());
    for (int i = 0; i < 10; ++i) CHECK(idle.rest());
    idle.reset();
  }
}

TEST(engine_idle_never_naps_when_told_not_to) {
  IdleLadder idle(false, 50'000);
  IdleLadder no_time(true, 0);
  for (int i = 0; i < 2000; ++i) CHECK(!idle.rest() && !no_time.rest());
}

TEST(engine_idle_naps_really_sleep) {
  IdleLadder idle(true, 2'000'000);
  IdleLadder::prepare_thread();
  for (u32 i = 0; i < IdleLadder::kPauses + IdleLadder::kYields + 12; ++i) idle.rest();  // doubled to the most by now
  const u64 before = steady_ns();
  CHECK(idle.rest());
  CHECK(steady_ns() - before >= 1'900'000);
}
