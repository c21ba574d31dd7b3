// Peers come out in the order in which they went in, each once however often it was pushed, over many laps.
#include <deque>
#include <random>

#include "native/check.h"
#include "transport/peer_ring.h"

namespace uccl {

TEST(peer_ring_serves_each_waiting_peer_once_and_in_turn) {
  constexpr u32 kRanks = 5;
  PeerRing ring(kRanks);
  std::deque<u32> due;
  std::mt19937 dice(7);
  for (int turn = 0; turn < 10000; ++turn) {
    const u32 rank = dice() % kRanks;
    if (dice() % 2 == 0) {
      ring.push(rank);
      bool waits = false;
      for (const u32 other : due) waits |= other == rank;
      if (!waits) due.push_back(rank);
    } else if (!due.empty()) {
      CHECK_EQ(ring.pop(), due.front());
      due.pop_front();
    }
    CHECK_EQ(ring.size(), due.size());
  }
}

}  // namespace uccl
