// The ledger: limits per peer, and sums that readers see after each publish.
#include <random>

#include "engine/ledger.h"
#include "native/check.h"
#include "proxy/engine/rank_memory.h"

using namespace uccl;
using namespace uccl::testing;

TEST(engine_ledger_limits_count_and_bytes) {
  RankMemory rank(Shape{.max_in_flight = 3, .max_in_flight_bytes = 1000});
  PeerLedger ledger(rank.settings, rank.peer_counters.data());
  CHECK(ledger.has_room(1, 5000));  // larger than the limit, but alone
  ledger.opened(1, 5000);
  CHECK(!ledger.has_room(1, 16));
  CHECK(ledger.has_room(1, 0));  // an immediate needs no bytes
  CHECK(ledger.has_room(2, 1000));
  ledger.completed(1, 5000);
  ledger.opened(1, 400);
  CHECK(ledger.has_room(1, 600));
  CHECK(!ledger.has_room(1, 601));
  ledger.opened(1, 0);
  ledger.opened(1, 0);
  CHECK(!ledger.has_room(1, 0));
  CHECK_EQ(ledger.in_flight(), 3ull);
}

TEST(engine_ledger_limits_the_bytes_to_all_peers_together) {
  RankMemory rank(Shape{.max_in_flight_bytes = 1000});
  rank.settings.max_in_flight_bytes_all = 1500;
  PeerLedger ledger(rank.settings, rank.peer_counters.data());
  ledger.opened(1, 900);
  CHECK(ledger.has_room(2, 600));
  CHECK(!ledger.has_room(2, 601));
  CHECK(ledger.has_room(2, 0));
  ledger.opened(2, 600);
  CHECK(!ledger.has_room(3, 16));
  ledger.completed(2, 600);
  CHECK(ledger.has_room(3, 600));
  CHECK(!ledger.has_room(3, 5000));  // larger than the bound: alone
  ledger.forget(1);  // what was on its way to the lost is not
  CHECK(ledger.has_room(3, 5000));
}

TEST(engine_ledger_knows_who_is_a_peer) {
  RankMemory rank(Shape{.rank = 2});
  rank.settings.peer_bytes[3] = 0;
  PeerLedger ledger(rank.settings, rank.peer_counters.data());
  CHECK(ledger.is_peer(0) && ledger.is_peer(1));
  CHECK(!ledger.is_peer(2) && !ledger.is_peer(3) && !ledger.is_peer(4) && !ledger.is_peer(~0u));
}

TEST(engine_ledger_two_workers_sum_up_and_end_at_zero) {
  RankMemory rank(Shape{.max_in_flight = 512});
  PeerLedger a(rank.settings, rank.peer_counters.data()), b(rank.settings, rank.peer_counters.data());
  std::mt19937 random(4);
  u64 open[2][4] = {}, writes[4] = {};
  for (int i = 0; i < 3000; ++i) {
    const u32 which = random() % 2, peer = 1 + random() % 3;
    PeerLedger& l = which ? b : a;
    if (random() % 2 && l.has_room(peer, 32)) {
      l.opened(peer, 32);
      ++open[which][peer], ++writes[peer];
    } else if (open[which][peer]) {
      l.completed(peer, 32);
      --open[which][peer];
    }
    if (random() % 7 == 0) {
      a.publish(0);
      b.publish(0);
      for (u32 p = 1; p < 4; ++p) {
        CHECK_EQ(rank.peer_counters[p].in_flight, open[0][p] + open[1][p]);
        CHECK_EQ(rank.peer_counters[p].in_flight_bytes, 32 * (open[0][p] + open[1][p]));
        CHECK_EQ(rank.peer_counters[p].writes, writes[p]);
      }
    }
  }
  for (PeerLedger* l : {&a, &b}) {
    for (u32 p = 1; p < 4; ++p) l->forget(p);
    l->publish(0);
    CHECK_EQ(l->in_flight(), 0ull);
    CHECK(!l->changed());
  }
  for (u32 p = 1; p < 4; ++p) CHECK_EQ(rank.peer_counters[p].in_flight + rank.peer_counters[p].in_flight_bytes, 0ull);
}

TEST(engine_ledger_stamps_only_peers_that_were_heard) {
  RankMemory rank(Shape{});
  PeerLedger ledger(rank.settings, rank.peer_counters.data());
  ledger.stalled(1);
  CHECK(ledger.changed());
  ledger.publish(5);
  CHECK_EQ(rank.peer_counters[1].stalls, 1ull);
  CHECK_EQ(rank.peer_counters[1].last_arrival_ns, 0ull);
  ledger.arrived(1);
  ledger.publish(77);
  CHECK_EQ(rank.peer_counters[1].arrivals, 1ull);
  CHECK_EQ(rank.peer_counters[1].last_arrival_ns, 77ull);
}

TEST(engine_ledger_sums_the_time_with_writes_open) {
  RankMemory rank(Shape{});
  PeerLedger ledger(rank.settings, rank.peer_counters.data());
  const u64& sending_ns = rank.peer_counters[1].sending_ns;
  ledger.opened(1, 32);
  ledger.publish(1000);
  CHECK_EQ(sending_ns, 0ull);
  ledger.opened(1, 32);
  ledger.publish(1500);
  CHECK_EQ(sending_ns, 500ull);  // one was open all the time
  ledger.completed(1, 32);
  ledger.publish(1600);
  ledger.completed(1, 32);
  ledger.publish(1800);
  CHECK_EQ(sending_ns, 800ull);
  ledger.stalled(1);  // nothing is open any more
  ledger.publish(9000);
  ledger.opened(1, 32);
  ledger.publish(9100);
  ledger.forget(1);
  ledger.publish(9150);
  CHECK_EQ(sending_ns, 850ull);
  CHECK_EQ(rank.peer_counters[2].sending_ns, 0ull);
}

TEST(engine_ledger_shows_what_arrivals_say_of_their_sender) {
  RankMemory rank(Shape{});
  PeerLedger a(rank.settings, rank.peer_counters.data()), b(rank.settings, rank.peer_counters.data());
  const PeerCounters& peer = rank.peer_counters[2];
  a.took(2, {.arriving_ns = 70, .parked = 3});
  b.took(2, {.arriving_ns = 30, .parked = 2});
  a.publish(1);
  b.publish(1);
  CHECK_EQ(peer.arriving_ns, 100ull);
  CHECK_EQ(peer.parked, 5ull);
  a.took(2, {.parked = -3});
  a.publish(2);
  CHECK_EQ(peer.parked, 2ull);
  b.forget(2);
  b.publish(3);
  CHECK_EQ(peer.parked, 0ull);  // what waited there is dropped with the peer
  CHECK_EQ(peer.arriving_ns, 100ull);
}
