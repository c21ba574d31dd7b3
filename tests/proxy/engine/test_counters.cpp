// Counters lie in a segment that other processes read: whole words, an entry a cache line or more, zero means nothing.
#include <cstring>
#include <type_traits>

#include "engine/counters.h"
#include "native/check.h"

using namespace uccl;

TEST(engine_counters_share_no_cache_line) {
  static_assert(sizeof(WorkerCounters) % 64 == 0 && sizeof(PeerCounters) % 64 == 0);
  WorkerCounters workers[2];
  PeerCounters peers[2];
  CHECK_EQ(reinterpret_cast<std::uintptr_t>(workers) % 64, 0u);
  CHECK_EQ(reinterpret_cast<std::uintptr_t>(peers) % 64, 0u);
}

TEST(engine_counters_begin_as_zeroed_memory) {
  static_assert(std::is_trivially_copyable_v<WorkerCounters> && std::is_trivially_copyable_v<PeerCounters>);
  alignas(64) u8 segment[sizeof(PeerCounters)] = {};
  PeerCounters peer;
  std::memcpy(&peer, segment, sizeof(peer));
  CHECK_EQ(peer.writes + peer.in_flight + peer.lost + peer.parked, 0u);
}
