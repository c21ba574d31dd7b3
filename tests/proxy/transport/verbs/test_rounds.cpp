// Each peer is asked once in its interval, however often or seldom the clock is read.
#include "native/check.h"
#include "transport/verbs/rounds.h"

using namespace uccl;

TEST(transport_verbs_rounds_ask_each_peer_once_an_interval) {
  constexpr u64 kSecond = 1'000'000'000;
  for (const u64 peers : {1ull, 3ull, 500ull, 4064ull}) {
    for (const u64 step_ns : {10'000ull, 12'300'000ull, 400'000'000ull}) {
      Rounds rounds(kSecond);
      u64 asked = 0, now = 77;
      CHECK_EQ(rounds.due(now, peers), 0u);
      for (; now < 77 + 10 * kSecond; now += step_ns) {
        const u64 n = rounds.due(now, peers);
        CHECK(n <= peers * step_ns / kSecond + 1);
        asked += n;
      }
      CHECK(asked <= 10 * peers && asked + peers >= 10 * peers);
    }
  }
}

TEST(transport_verbs_rounds_do_not_ask_twice_after_a_long_sleep) {
  Rounds rounds(1'000'000'000);
  rounds.due(1, 100);
  CHECK_EQ(rounds.due(60'000'000'000, 100), 100u);
  CHECK_EQ(rounds.due(60'000'000'001, 100), 0u);
}

TEST(transport_verbs_rounds_look_by_the_clock) {
  Rounds rounds(1'000'000'000);
  CHECK(rounds.looks(5));
  CHECK(!rounds.looks(5 + Rounds::kLookNs - 1));
  CHECK(rounds.looks(5 + Rounds::kLookNs));
}
