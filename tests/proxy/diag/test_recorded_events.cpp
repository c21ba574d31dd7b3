// What a worker puts in its event ring: announcements, bursts, flags, stalls, barriers, faults and partings always;
// every command, completion and arrival when it is traced; and nothing that it would not have done without a ring.
#include <thread>

#include "diag/event_reader.h"
#include "native/check.h"
#include "proxy/diag/event_memory.h"
#include "proxy/engine/rank_memory.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

constexpr u32 kCapacity = 1024;

class Recorded : public Stepper {
 public:
  explicit Recorded(bool traced, const Shape& shape = Shape{}) : Stepper(shape), memory(kCapacity) {
    settings.events.push_back(EventLog(memory.ring(), kCapacity, traced));
    lane().set_echo(false);
  }
  std::vector<Event> events(EventKind kind) const {
    std::vector<Event> found;
    for (const Event& e : read_events(memory.ring(), memory.bytes).events)
      if (e.kind == kind) found.push_back(e);
    return found;
  }
  std::size_t count(EventKind kind) const { return events(kind).size(); }

  EventMemory memory;
};

Command announcement(u32 peer, u64 epoch) {
  return {Op::kCount, peer, epoch_key(Phase::kDispatch, epoch), kControlOffset, kControlOffset, sizeof(ExpectHeader)};
}

}  // namespace

TEST(diag_events_every_command_when_traced) {
  Recorded rank(true);
  const u64 before = steady_ns();
  for (u32 i = 0; i < 5; ++i) rank.push(0, write_command(1 + i % 3, i, 64 + 16 * i));
  rank.step();
  for (const WriteRequest& r : rank.lane().posted()) rank.lane().complete(r.wr_id);
  rank.step();
  const u64 after = steady_ns();
  const auto popped = rank.events(EventKind::kPopped), posted = rank.events(EventKind::kPosted),
             completed = rank.events(EventKind::kCompleted);
  CHECK_EQ(popped.size(), 5u);
  CHECK_EQ(posted.size(), 5u);
  CHECK_EQ(completed.size(), 5u);
  for (u32 i = 0; i < 5; ++i) {
    CHECK_EQ(popped[i].peer, 1 + i % 3);
    CHECK_EQ(popped[i].key >> 32, 64u + 16 * i);
    CHECK_EQ(unpack_immediate(static_cast<u32>(popped[i].key)).key, i);
    CHECK_EQ(popped[i].value, i);  // ring 0, ticket i
    CHECK_EQ(posted[i].key, popped[i].key);
    CHECK_EQ(posted[i].value, popped[i].value);
    CHECK_EQ(completed[i].value, popped[i].value);
    CHECK_EQ(completed[i].peer, popped[i].peer);
    CHECK_EQ(completed[i].key >> 32, popped[i].key >> 32);
    CHECK(before <= popped[i].ns && popped[i].ns <= posted[i].ns && posted[i].ns <= completed[i].ns);
    CHECK(completed[i].ns <= after);
  }
}

TEST(diag_events_untraced_bursts_and_announcements) {
  Recorded rank(false);
  for (u32 i = 0; i < 40; ++i) rank.push(0, write_command(1, i));
  rank.push(0, announcement(2, 1));
  rank.step(3);  // several batches, one burst
  const auto popped = rank.events(EventKind::kPopped);
  CHECK_EQ(popped.size(), 2u);
  CHECK_EQ(popped[0].value, 0u);
  CHECK_EQ(popped[1].peer, 2u);
  CHECK_EQ(popped[1].value, 40u);
  CHECK_EQ(unpack_immediate(static_cast<u32>(popped[1].key)).key, epoch_key(Phase::kDispatch, 1));
  rank.step(2);
  rank.push(0, write_command(3));
  rank.step();
  CHECK_EQ(rank.count(EventKind::kPopped), 3u);
  CHECK_EQ(rank.count(EventKind::kPosted) + rank.count(EventKind::kCompleted), 0u);
}

TEST(diag_events_arrivals_and_flags) {
  for (const bool traced : {false, true}) {
    Recorded rank(traced);
    rank.land_header(Phase::kDispatch, 1, 2, 3);
    for (u32 i = 0; i < 3; ++i) rank.deliver(ImmediateKind::kArrive, 2, epoch_key(Phase::kDispatch, 1));
    rank.deliver(ImmediateKind::kExpect, 2, epoch_key(Phase::kDispatch, 1));
    rank.deliver(ImmediateKind::kSequence, 1, stream_key(Direction::kCombine, 3, 0));
    rank.step();
    const auto arrivals = rank.events(EventKind::kArrival), flags = rank.events(EventKind::kPublished);
    CHECK_EQ(arrivals.size(), traced ? 5u : 2u);  // a burst's first one and the announcement
    CHECK_EQ(arrivals[0].peer, 2u);
    CHECK_EQ(arrivals[0].key, pack(Immediate{ImmediateKind::kArrive, 2, epoch_key(Phase::kDispatch, 1)}));
    CHECK_EQ(flags.size(), traced ? 2u : 1u);
    CHECK_EQ(flags[0].peer, 2u);
    CHECK_EQ(flags[0].key, static_cast<u64>(Phase::kDispatch));
    CHECK_EQ(flags[0].value, 1u);
    if (traced) {
      CHECK_EQ(flags[1].key, 1ull << 32 | stream_key(Direction::kCombine, 3, 0));
      CHECK_EQ(flags[1].value, 1u);
    }
  }
}

TEST(diag_events_stalls_once_a_busy_time) {
  Recorded rank(false, Shape{.max_in_flight = 1});
  for (u32 i = 0; i < 6; ++i) rank.push(0, write_command(2));
  for (u32 i = 0; i < 3; ++i) {
    rank.step(4);
    rank.lane().complete(rank.lane().posted().back().wr_id);
  }
  CHECK(rank.counters().stalls >= 3);
  const auto stalls = rank.events(EventKind::kStalled);
  CHECK_EQ(stalls.size(), 1u);
  CHECK_EQ(stalls[0].peer, 2u);
  CHECK_EQ(stalls[0].value, 1u);  // ticket 0 went out
  for (u32 i = 0; i < 3; ++i) {   // the ring runs empty; the next stall is news again
    rank.step(2);
    rank.lane().complete(rank.lane().posted().back().wr_id);
  }
  rank.step(2);
  CHECK_EQ(rank.done(0), 6ull);
  rank.push(0, write_command(2));
  rank.push(0, write_command(2));
  rank.step(2);
  CHECK_EQ(rank.count(EventKind::kStalled), 2u);
}

TEST(diag_events_barrier_rounds) {
  Recorded rank(false);
  rank.push(0, Command{Op::kBarrier, 0, 1, 0, 0, 0});
  rank.step();
  CHECK_EQ(rank.count(EventKind::kBarrier), 1u);
  for (u32 peer = 1; peer < 4; ++peer) rank.deliver(ImmediateKind::kBarrier, peer, 1);
  rank.step(2);
  const auto rounds = rank.events(EventKind::kBarrier);
  CHECK_EQ(rounds.size(), 2u);
  CHECK_EQ(rounds[0].key, 0u);
  CHECK_EQ(rounds[1].key, 1u);
  CHECK_EQ(rounds[0].value, 1u);
  CHECK_EQ(rounds[1].value, 1u);
  CHECK_EQ(rank.count(EventKind::kArrival), 3u);
}

TEST(diag_events_faults_and_partings) {
  Recorded rank(false);
  rank.step(32);
  rank.lane().report(PeerEvent{2, PeerFault::kNetwork, -5});
  rank.step(64);
  const auto parted = rank.events(EventKind::kParted), faults = rank.events(EventKind::kFault);
  CHECK(!parted.empty());
  CHECK_EQ(parted[0].peer, 2u);
  CHECK_EQ(parted[0].key, static_cast<u64>(PartReason::kConnection));
  CHECK_EQ(static_cast<i64>(parted[0].value), -5);
  CHECK_EQ(faults.size(), 1u);  // however often the record is looked at
  CHECK_EQ(faults[0].peer, 2u);
  CHECK_EQ(faults[0].key, static_cast<u64>(FaultKind::kTransport));
  CHECK_EQ(static_cast<i64>(faults[0].value), -5);
}

TEST(diag_events_a_reader_beside_a_running_worker) {
  Recorded rank(true, Shape{.capacity = 256});
  rank.lane().set_echo(true);
  rank.step();
  std::atomic<bool> over{false};
  std::thread reader([&] {
    while (!over.load(std::memory_order_acquire)) (void)read_events(rank.memory.ring(), rank.memory.bytes);
  });
  for (u32 i = 0; i < 2000; ++i) {
    rank.push(0, write_command(1 + i % 3, i));
    rank.step();
  }
  rank.step();
  over.store(true, std::memory_order_release);
  reader.join();
  CHECK_EQ(rank.done(0), 2000ull);
  const EventSnapshot s = read_events(rank.memory.ring(), rank.memory.bytes);
  CHECK(s.traced);
  CHECK_EQ(s.written, 6000u);
  CHECK_EQ(s.events.size(), kCapacity - 1u);
  u64 last = 0;
  for (const Event& e : s.events) {
    CHECK(e.ns >= last);
    last = e.ns;
  }
}
