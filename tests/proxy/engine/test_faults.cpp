// Faults: the first fills the record, all of them abort, and a reader never sees half a record.
#include <sched.h>

#include <cstddef>
#include <cstring>
#include <thread>
#include <vector>

#include "native/check.h"
#include "proxy/engine/rank_memory.h"

using namespace uccl;
using namespace uccl::testing;

TEST(engine_faults_the_first_wins_and_the_record_is_whole) {
  for (int round = 0; round < 20; ++round) {
    RankMemory rank(Shape{});
    Faults faults(rank.control(), rank.peer_counters.data(), 4);
    std::vector<std::thread> threads;
    for (u32 t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        faults.raise({.kind = FaultKind::kTransport,
                      .phase = WaitPhase::kRing,
                      .peer = t,
                      .detail = t + 10,
                      .expected = t + 100,
                      .seen = t + 1000});
      });
    auto& record = *reinterpret_cast<FaultRecord*>(rank.control() + ControlLayout::kFault);
    while (std::atomic_ref<u32>(record.ready).load(std::memory_order_acquire) == 0) sched_yield();
    // ThreadSanitizer proves that nobody writes these any more; `claimed` is still tried by those who came second.
    FaultRecord copy{};
    std::memcpy(&copy.kind, &record.kind, sizeof copy - offsetof(FaultRecord, kind));
    for (auto& t : threads) t.join();
    CHECK_EQ(rank.aborted(), 1ull);
    CHECK_EQ(copy.kind, static_cast<u32>(FaultKind::kTransport));
    CHECK_EQ(copy.phase, static_cast<u32>(WaitPhase::kRing));
    CHECK_EQ(copy.detail, DetailWord(copy.peer + 10).word);
    CHECK_EQ(copy.expected, u64{copy.peer} + 100);
    CHECK_EQ(copy.seen, u64{copy.peer} + 1000);
  }
}

TEST(engine_faults_a_later_one_leaves_the_record_alone) {
  RankMemory rank(Shape{});
  Faults faults(rank.control(), rank.peer_counters.data(), 4);
  faults.raise({.kind = FaultKind::kPeerLost, .peer = 1});
  faults.raise({.kind = FaultKind::kBadCommand, .phase = WaitPhase::kRing, .peer = 2, .seen = 9});
  CHECK_EQ(rank.fault().kind, static_cast<u32>(FaultKind::kPeerLost));
  CHECK_EQ(rank.fault().peer, 1u);
  CHECK_EQ(rank.fault().seen, 0ull);
  rank.set_word(ControlLayout::kAbort, 0);  // survivors went on; the next fault ends waits again
  faults.raise({.kind = FaultKind::kPeerLost, .peer = 3});
  CHECK_EQ(rank.aborted(), 1ull);
}

TEST(engine_faults_say_how_long_ago_the_peer_was_heard) {
  RankMemory rank(Shape{});
  rank.peer_counters[2].last_arrival_ns = steady_ns() - 5'000'000;
  Faults faults(rank.control(), rank.peer_counters.data(), 4);
  faults.raise({.kind = FaultKind::kPeerLost, .peer = 2});
  CHECK(rank.fault().last_seen_ns >= 5'000'000 && rank.fault().last_seen_ns < 5'000'000'000);
  RankMemory other(Shape{});
  Faults unknown(other.control(), other.peer_counters.data(), 4);
  unknown.raise({.kind = FaultKind::kPeerLost, .peer = ~0u});
  CHECK_EQ(other.fault().last_seen_ns, 0ull);
  CHECK_EQ(other.fault().peer, ~0u);
}
