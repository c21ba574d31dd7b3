// Membership: lost is a fault once, dismissed never, and every worker closes the peer on its own lane.
#include <thread>
#include <vector>

#include "native/check.h"
#include "proxy/engine/rank_memory.h"

using namespace uccl;
using namespace uccl::testing;

TEST(engine_membership_a_lost_peer_is_one_fault) {
  Stepper rank(Shape{.num_workers = 2});
  rank.membership.lose(3, PeerFault::kLost, 104);
  CHECK_EQ(rank.aborted(), 1ull);
  CHECK_EQ(rank.fault().kind, static_cast<u32>(FaultKind::kPeerLost));
  CHECK_EQ(rank.fault().phase, static_cast<u32>(WaitPhase::kNone));
  CHECK_EQ(rank.fault().peer, 3u);
  CHECK_EQ(rank.fault().seen, 104ull);
  CHECK_EQ(rank.peer_counters[3].lost, 1ull);
  rank.step();
  for (u32 w = 0; w < 2; ++w) CHECK(rank.lane(w).closed() == std::vector<u32>{3});
  const u64 version = rank.membership.version();
  rank.membership.lose(3, PeerFault::kLost, 0);  // a second report changes nothing
  rank.step(3);
  CHECK_EQ(rank.membership.version(), version);
  CHECK_EQ(rank.lane().closed().size(), 1u);
}

TEST(engine_membership_a_dismissed_peer_is_silent) {
  Stepper rank(Shape{});
  rank.membership.dismiss(1);
  rank.step();
  CHECK(rank.lane().closed() == std::vector<u32>{1});
  rank.membership.lose(1, PeerFault::kLost, 0);
  rank.step();
  CHECK_EQ(rank.aborted(), 0ull);
  CHECK_EQ(rank.fault().claimed, 0u);
  CHECK_EQ(rank.peer_counters[1].lost, 0ull);
  CHECK_EQ(rank.lane().closed().size(), 1u);
}

TEST(engine_membership_each_kind_of_event_has_its_fault) {
  const std::pair<PeerFault, FaultKind> kinds[] = {{PeerFault::kLost, FaultKind::kPeerLost},
                                                   {PeerFault::kProtocol, FaultKind::kBadArrival},
                                                   {PeerFault::kNetwork, FaultKind::kTransport}};
  for (const auto& [event, fault] : kinds) {
    Stepper rank(Shape{});
    rank.lane().report({2, event, 7});
    rank.step(16);  // events are looked for every few turns
    CHECK_EQ(rank.fault().kind, static_cast<u32>(fault));
    CHECK_EQ(rank.fault().seen, 7ull);
    CHECK(rank.lane().closed() == std::vector<u32>{2});
  }
}

TEST(engine_membership_ranks_that_do_not_exist_are_ignored) {
  Stepper rank(Shape{});
  rank.membership.lose(4, PeerFault::kLost, 0);
  rank.membership.dismiss(~0u);
  rank.membership.lose(0, PeerFault::kLost, 0);  // itself is no peer: nothing to close
  rank.step();
  CHECK(rank.lane().closed().empty());
}

TEST(engine_membership_many_reporters_one_fault_each_peer_gone_for_all) {
  RankMemory rank(Shape{.num_ranks = 64});
  Faults faults(rank.control(), rank.peer_counters.data(), 64);
  Membership membership(64, rank.peer_counters.data(), faults);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (u32 p = 0; p < 64; ++p) membership.lose(p, PeerFault::kLost, 0);
    });
  for (auto& t : threads) t.join();
  CHECK_EQ(membership.version(), 64ull);
  for (u32 p = 0; p < 64; ++p) CHECK(membership.gone(p) && rank.peer_counters[p].lost == 1);
}
