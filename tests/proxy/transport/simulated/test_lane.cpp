// A lane's end is told to its peers, with code 0, after what it had delivered.
#include "native/check.h"
#include "proxy/transport/simulated/links.h"
#include "transport/simulated/lane.h"

TEST(simulated_lane_says_goodbye_after_its_last_words) {
  using namespace uccl;
  testing::Links l(testing::ranks(2, 4, "srd"));
  l.post(0, 1, 11);
  l.network->run_until(l.network->now_ns() + 10'000'000);
  l.lanes[0].reset();
  l.network->run_until(l.network->now_ns() + 10'000'000);
  CHECK(l.events(1).empty());  // its write has not been polled
  CHECK_EQ(l.arrivals(1).size(), 1u);
  const auto e = l.events(1);
  CHECK_EQ(e.size(), 1u);
  CHECK(e[0].peer == 0 && e[0].code == 0 && e[0].fault == PeerFault::kLost);
  CHECK_EQ(l.lanes[1]->counters().arrivals, 1u);
}
