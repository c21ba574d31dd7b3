// Two ranks of one process over the loopback transport: memory, a ring, settings and counters of each. What the proxy's
// benchmarks share. Flat space of a rank: [0, kDataBytes) data, [kControlOffset, + control) the control segment.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/words.h"
#include "tests/proxy/ring/producer.h"
#include "transport/loopback/transport.h"

namespace uccl {

inline constexpr u64 kDataBytes = 64 << 10, kControlOffset = 1 << 20;
inline constexpr u32 kBenchCapacity = 1024, kBenchChannels = 32, kBenchEvents = 4096;

// Zeroed, page-aligned.
class BenchMemory {
 public:
  explicit BenchMemory(u64 bytes)
      : bytes_(align_up(bytes, 4096)), at_(static_cast<u8*>(std::aligned_alloc(4096, bytes_)), &std::free) {
    std::fill_n(at_.get(), bytes_, u8{0});
  }
  u8* data() const { return at_.get(); }

 private:
  u64 bytes_;
  std::unique_ptr<u8, void (*)(void*)> at_;
};

using MakeTransport = std::function<std::unique_ptr<Transport>(TransportSettings)>;
inline std::unique_ptr<Transport> make_loopback(const TransportSettings& s) {
  return std::make_unique<LoopbackTransport>(s);
}

struct BenchRank {
  explicit BenchRank(u32 rank, const MakeTransport& make = make_loopback)
      : layout{2, kBenchChannels},
        data(kDataBytes),
        control(layout.bytes()),
        ring(ring_bytes(kBenchCapacity)),
        events(event_ring_bytes(kBenchEvents)) {
    settings.rank = rank;
    settings.num_ranks = 2;
    settings.rings = {ring.data()};
    settings.ring_capacity = kBenchCapacity;
    settings.local.add({0, kDataBytes, data.data()});
    settings.local.add({kControlOffset, layout.bytes(), control.data()});
    settings.peer_bytes.assign(2, kControlOffset + layout.bytes());
    settings.control = control.data();
    settings.control_layout = layout;
    settings.events.emplace_back(events.data(), kBenchEvents,
                                 false);  // the flight recorder runs, as it does by default
    TransportSettings network;
    network.rank = rank;
    network.num_ranks = 2;
    network.local = settings.local;
    transport = make(network);
  }

  RingView view() const { return ring_view(ring.data(), kBenchCapacity); }
  u64 word(u64 offset) const { return read_word(control_word(control.data(), offset)); }
  // Puts commands into the ring, which must have room; returns the first ticket.
  u64 push(std::span<const Command> commands) const {
    u64 first = 0;
    ring_push(view(), commands, &first, [] { return true; });
    return first;
  }

  ControlLayout layout;
  BenchMemory data, control, ring, events;
  EngineSettings settings;
  std::vector<WorkerCounters> worker_counters{1};
  std::vector<PeerCounters> peer_counters{2};
  std::unique_ptr<Transport> transport;
};

// Rank 0 sends in every benchmark; both are connected.
struct TwoRanks {
  explicit TwoRanks(const MakeTransport& make = make_loopback) : a(0, make), b(1, make) {
    const std::string addresses[] = {a.transport->local_address(), b.transport->local_address()};
    std::thread other([&] { b.transport->connect({addresses[0], ""}); });  // each waits for the other
    a.transport->connect({"", addresses[1]});
    other.join();
  }
  BenchRank a, b;
};

}  // namespace uccl
