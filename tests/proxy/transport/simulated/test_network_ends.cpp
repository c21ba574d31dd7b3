// Faults of the plan and the ends of connections.
#include <cerrno>

#include "native/check.h"
#include "proxy/transport/simulated/links.h"

namespace {

using namespace uccl;
using testing::Links;

Links with(FaultPlanKind kind, u32 source, u32 target) {
  NetworkSettings s = testing::ranks(3, 8, "srd");
  FaultPlan p;
  p.kind = kind;
  p.source = source;
  p.target = target;
  p.begin_ns = 1'000'001;
  p.end_ns = 50'000'000;
  p.notice_ns = 1000;
  s.faults = {p};
  return Links(s);
}

void settle(Links& l) { l.network->run_until(l.network->now_ns() + 20'000'000); }

}  // namespace

TEST(simulated_network_ends_link_loss_is_told_to_both) {
  Links l = with(FaultPlanKind::kLinkLoss, 0, 1);
  l.post(0, 1, 5);
  l.post(0, 2, 6);
  settle(l);
  CHECK(l.arrivals(1).empty());
  CHECK_EQ(l.arrivals(2).size(), 1u);
  for (const u32 r : {0u, 1u}) {
    const auto e = l.events(r);
    CHECK_EQ(e.size(), 1u);
    CHECK_EQ(e[0].peer, 1 - r);
    CHECK(e[0].fault == PeerFault::kLost && e[0].code == ETIMEDOUT);
    settle(l);
    CHECK(l.events(r).empty());
  }
  CHECK(l.events(2).empty());
  CHECK(l.post(0, 1, 7));  // taken and dropped
  settle(l);
  CHECK(l.arrivals(1).empty());
}

TEST(simulated_network_ends_half_open_swallows_in_silence) {
  Links l = with(FaultPlanKind::kHalfOpen, 0, 1);
  l.post(0, 1, 5);
  l.post(1, 0, 6);
  settle(l);
  CHECK(l.arrivals(1).empty() && l.wr_ids(0).empty());
  CHECK_EQ(l.arrivals(0).size(), 1u);
  CHECK(l.events(0).empty() && l.events(1).empty());
  CHECK_EQ(l.network->totals().dropped, 1u);
}

TEST(simulated_network_ends_death_is_told_to_all) {
  Links l = with(FaultPlanKind::kDeath, 2, 0);
  settle(l);
  CHECK(l.network->dead(2) && !l.network->dead(0));
  for (const u32 r : {0u, 1u}) {
    const auto e = l.events(r);
    CHECK_EQ(e.size(), 1u);
    CHECK_EQ(e[0].peer, 2u);
    CHECK_EQ(e[0].code, ECONNRESET);
  }
}

TEST(simulated_network_ends_stall_holds_one_direction_back) {
  Links l = with(FaultPlanKind::kStall, 0, 1);
  l.network->run_until(1'000'002);
  l.post(0, 1, 5);
  l.post(1, 0, 6);
  l.network->run_until(40'000'000);
  CHECK(l.arrivals(1).empty());
  CHECK_EQ(l.arrivals(0).size(), 1u);
  l.network->run_until(60'000'000);
  CHECK_EQ(l.arrivals(1).size(), 1u);
}

TEST(simulated_network_ends_nothing_moves_once_all_is_over) {
  Links l(testing::ranks(2, 1, "srd"));
  l.post(0, 1, 5);
  l.network->end_all();
  settle(l);
  CHECK(l.arrivals(1).empty());
}
