// Whole engines joined by the loopback transport, which delivers in a random order: epochs with data, ordered channels,
// credits and barriers at once, on every rank.
#include <sched.h>

#include <random>
#include <string>
#include <thread>

#include "engine/engine.h"
#include "native/check.h"
#include "proxy/engine/rank_memory.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

constexpr u32 kRanks = 3, kRings = 4, kChannels = 4, kRowBytes = 64, kMostRows = 12, kChunks = 3;
constexpr u64 kEpochs = 120, kHeaders = 60 << 10;  // where a rank stages its headers
constexpr u64 kSlotBytes = kMostRows * kRowBytes;
// Rows of (source or destination, epoch parity): received below 16 KiB, staged above.
constexpr u64 received(u32 source, u64 epoch) { return (source * 2 + (epoch & 1)) * kSlotBytes; }
constexpr u64 staged(u32 peer, u64 epoch) { return (16 << 10) + received(peer, epoch); }
u64 num_rows(u32 source, u32 peer, u64 epoch) { return (source * 7 + peer * 3 + epoch * 5) % (kMostRows + 1); }
u64 mark(u32 source, u32 peer, u64 epoch, u64 row) { return epoch << 20 | source << 16 | peer << 12 | row; }

struct Member {
  Member(u32 r, u64 session, u64 seed)
      : rank(Shape{.rank = r,
                   .num_ranks = kRanks,
                   .num_channels = kChannels,
                   .num_rings = kRings,
                   .capacity = 64,
                   .num_workers = 2,
                   .max_in_flight = 16,
                   .max_in_flight_bytes = 512}) {
    TransportSettings t;
    t.rank = r;
    t.num_ranks = kRanks;
    t.num_lanes = 2;
    t.session = session;
    t.secret = std::string(32, 's');
    t.local = rank.settings.local;
    t.max_in_flight = 32;
    t.in_process.shuffle_seed = seed;
    transport = make_transport("loopback", t);
    address = transport->local_address();
  }

  bool wait(u64 offset, u64 value) {
    const u64 until = steady_ns() + 40'000'000'000ull;
    while (rank.word(offset) < value) {
      if (steady_ns() > until || rank.aborted()) return false;
      sched_yield();
    }
    return true;
  }
  u64 push(u32 ring, const Command& c) {
    u64 ticket = 0;
    ring_push(ring_view(rank.settings.rings[ring], 64), {&c, 1}, &ticket, [&] { return sched_yield() == 0; });
    return ticket;
  }
  void send(u32 peer, u64 epoch) {
    const u32 self = rank.settings.rank, ring = peer % kRings;
    const u64 rows = num_rows(self, peer, epoch);
    const u32 key = epoch_key(Phase::kDispatch, epoch);
    for (u64 i = 0; i < rows; ++i) {
      const u64 from = staged(peer, epoch) + i * kRowBytes;
      for (u64 at = 0; at < kRowBytes; at += 8)
        *reinterpret_cast<u64*>(&rank.data[from + at]) = mark(self, peer, epoch, i);
      push(ring, {Op::kWrite, peer, key, from, received(self, epoch) + i * kRowBytes, kRowBytes});
    }
    const u64 header = kHeaders + (peer * 2 + (epoch & 1)) * sizeof(ExpectHeader);
    const ExpectHeader h = ExpectHeader::make(epoch, rows, epoch - 1, 0);
    std::memcpy(&rank.data[header], &h, sizeof h);
    push(ring,
         {Op::kCount, peer, key, header, kControlOffset + rank.layout.expect(Phase::kDispatch, epoch, self), sizeof h});
    for (u32 channel = 0; channel < kChannels; ++channel) {
      for (u64 n = (epoch - 1) * kChunks; n < epoch * kChunks; ++n)
        push(channel % kRings, {Op::kSequence, peer, stream_key(Direction::kCombine, channel, n), 0, 0, 0});
      push(channel % kRings, {Op::kCredit, peer, stream_key(Direction::kCombine, channel, epoch * kChunks), 0, 0, 0});
    }
  }
  bool receive(u32 source, u64 epoch) {
    const u32 self = rank.settings.rank;
    if (!wait(rank.layout.flag(Phase::kDispatch, source), epoch)) return false;
    for (u64 i = 0; i < num_rows(source, self, epoch); ++i)
      for (u64 at = 0; at < kRowBytes; at += 8)
        if (*reinterpret_cast<u64*>(&rank.data[received(source, epoch) + i * kRowBytes + at]) !=
            mark(source, self, epoch, i))
          return false;
    for (u32 channel = 0; channel < kChannels; ++channel)
      if (!wait(rank.layout.tail(Direction::kCombine, source, channel), epoch * kChunks) ||
          !wait(rank.layout.credit(Direction::kCombine, source, channel), epoch * kChunks))
        return false;
    return true;
  }
  void run(const std::vector<std::string>& addresses) {
    transport->connect(addresses);
    engine = std::make_unique<Engine>(rank.settings, std::move(transport), rank.worker_counters.data(),
                                      rank.peer_counters.data());
    engine->start();
    for (u64 epoch = 1; epoch <= kEpochs; ++epoch) {
      for (u32 peer = 0; peer < kRanks; ++peer)
        if (peer != rank.settings.rank) send(peer, epoch);
      for (u32 source = 0; source < kRanks; ++source)
        if (source != rank.settings.rank && !receive(source, epoch)) return;
      for (u32 ring = 0; ring < kRings; ++ring) {  // staged bytes are written again two epochs later
        const u64 ticket = push(ring, {Op::kQuiet, 0, 0, 0, 0, 0});
        while (rank.done(ring) <= ticket && !rank.aborted()) sched_yield();
      }
      if (epoch % 20 != 0) continue;
      push(0, {Op::kBarrier, 0, static_cast<u32>(epoch / 20), 0, 0, 0});
      if (!wait(ControlLayout::kBarrier, epoch / 20)) return;
    }
    finished = true;
  }

  RankMemory rank;
  std::unique_ptr<Transport> transport;
  std::unique_ptr<Engine> engine;
  std::string address;
  bool finished = false;
};

}  // namespace

TEST(engine_group_everything_at_once_over_a_network_that_reorders) {
  for (const u64 seed : {0ull, 7ull}) {
    std::vector<std::unique_ptr<Member>> members;
    for (u32 r = 0; r < kRanks; ++r) members.push_back(std::make_unique<Member>(r, 4711 + seed, seed));
    std::vector<std::thread> threads;
    for (u32 r = 0; r < kRanks; ++r)
      threads.emplace_back([&, r] {
        std::vector<std::string> addresses;
        for (u32 other = 0; other < kRanks; ++other) addresses.push_back(other == r ? "" : members[other]->address);
        members[r]->run(addresses);
      });
    for (auto& t : threads) t.join();
    for (auto& m : members)  // whoever ends first is expected to
      for (u32 other = 0; other < kRanks; ++other)
        if (m->engine) m->engine->dismiss_peer(other);
    for (auto& m : members) m->engine->stop(1'000'000'000);
    u64 parked = 0;
    for (auto& m : members) {
      CHECK_EQ(m->rank.aborted(), 0ull);
      CHECK(m->finished);
      for (u32 source = 0; source < kRanks; ++source)
        if (source != m->rank.settings.rank)
          CHECK_EQ(m->rank.word(m->rank.layout.consumed(Phase::kDispatch, source)), kEpochs - 1);
      for (const WorkerCounters& c : m->rank.worker_counters) parked += c.parked;
    }
    if (seed != 0) CHECK(parked > 0);  // the network did reorder
  }
}
