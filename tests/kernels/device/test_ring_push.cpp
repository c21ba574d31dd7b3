// Kernels push into a real ring that the proxy's RingConsumer drains on another thread.
#include <thread>

#include "kernels/device/on_device.h"

// Counts how often a producer reads one word (the consumer's tail: on a GPU that read crosses PCIe). The functions of
// ring_push.h, below, find this overload before the back end's template.
namespace uccl::simt {
inline namespace UCCL_SIMT_WIDTH {
namespace {
const u64* counted_word = nullptr;
u64 counted_reads = 0;
DEV u64 ld_acquire_sys(const u64* p) {
  if (p == counted_word && p != nullptr)
    __atomic_fetch_add(&counted_reads, 1, __ATOMIC_RELAXED);  // blocks have threads
  return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
}  // namespace
}  // namespace UCCL_SIMT_WIDTH
}  // namespace uccl::simt

#include "kernels/device/ring_push.h"
#include "ring/consumer.h"

namespace uccl::simt {
namespace {

constexpr u64 kSecond = 1'000'000'000;

struct Ring {
  explicit Ring(u32 capacity)
      : memory(ceil_div(ring_bytes(capacity), sizeof(Line))),
        view(ring_view(memory.data(), capacity)),
        consumer(memory.data(), capacity) {}
  struct alignas(64) Line {
    u8 bytes[16 * 4];
  };
  std::vector<Line> memory;
  RingView view;
  RingConsumer consumer;
};

WaitContext context_of(Control& c, u64 timeout_ns) {
  return begin_wait(WaitContext{&c.abort, &c.fault, 0, 3, 0}, timeout_ns);
}

// Takes `total` commands in ticket order; publishes tail and done now and then. `on_command` reads what the command is
// about, as a network card would.
template <class OnCommand>
void drain(Ring* ring, u64 total, std::vector<Command>* taken, OnCommand on_command) {
  Random random(total);
  while (taken->size() < total) {
    Command c;
    if (!ring->consumer.peek(&c)) {
      ring->consumer.publish_tail();
      ring->consumer.publish_done(ring->consumer.next_ticket());
      std::this_thread::yield();
      continue;
    }
    on_command(c);
    taken->push_back(c);
    ring->consumer.advance();
    if (below(random, 5) == 0) ring->consumer.publish_tail();
  }
  ring->consumer.publish_tail();
  ring->consumer.publish_done(ring->consumer.next_ticket());
}

// A command that names the lane and the round that made it.
Command numbered(u32 who, u32 round) {
  Command c;
  c.op = Op::kWrite;
  c.peer = who % kMaxRanks;
  c.key = round;
  c.local_offset = static_cast<u64>(who) * 16;
  c.remote_offset = kMaxRegionBytes - 16 * (1 + static_cast<u64>(round));
  c.bytes = 16 * (who % 100);
  return c;
}

// Every lane pushes `rounds` times, in groups with random gaps or alone; the consumer must see each command once,
// whole, at its ticket.
void push_and_check(u32 capacity, u32 grid, u32 block, u32 rounds, bool group) {
  Ring ring(capacity);
  Control control;
  const u32 num_lanes = grid * block;
  const auto wanted = [&](u32 who, u32 round) { return !group || (who * 31 + round * 17) % 3 != 0; };
  u64 total = 0;
  for (u32 who = 0; who < num_lanes; ++who)
    for (u32 r = 0; r < rounds; ++r) total += wanted(who, r);
  std::vector<Command> taken;
  // Plain memory, written before the push and read by the proxy: ThreadSanitizer checks that the command releases it.
  std::vector<u32> payload(num_lanes * rounds, 0);
  u64 stale = 0;
  std::thread proxy([&] {
    drain(&ring, total, &taken, [&](const Command& c) {
      const u32 who = static_cast<u32>(c.local_offset / 16);
      stale += payload[who * rounds + c.key] != who + c.key + 1;
    });
  });
  std::vector<std::vector<u64>> tickets(num_lanes, std::vector<u64>(rounds));
  launch(LaunchConfig{grid, block, 0, 2, capacity}, [&] {
    const WaitContext wait = context_of(control, 50 * kSecond);
    const u32 who = bid() * block + tid();
    for (u32 r = 0; r < rounds; ++r) {
      payload[who * rounds + r] = who + r + 1;
      tickets[who][r] = group ? push_group(ring.view, numbered(who, r), wanted(who, r), wait)
                              : push(ring.view, numbered(who, r), wait);
    }
  });
  proxy.join();
  CHECK_EQ(control.fault.claimed, 0u);
  CHECK_EQ(stale, 0ull);
  std::vector<u32> used(total, 0);
  for (u32 who = 0; who < num_lanes; ++who)
    for (u32 r = 0; r < rounds; ++r) {
      const u64 t = tickets[who][r];
      if (!wanted(who, r)) {
        CHECK_EQ(t, kNoTicket);
        continue;
      }
      CHECK(t < total);
      used[t]++;
      const Command expect = numbered(who, r);
      CHECK_EQ(taken[t].peer, expect.peer);
      CHECK_EQ(taken[t].key, expect.key);
      CHECK_EQ(taken[t].local_offset, expect.local_offset);
      CHECK_EQ(taken[t].remote_offset, expect.remote_offset);
      CHECK_EQ(taken[t].bytes, expect.bytes);
    }
  for (const u32 n : used) CHECK_EQ(n, 1u);
}

}  // namespace

TEST(ring_push_single_lanes_fill_a_ring_past_many_laps) {
  for (const u32 capacity : {2u, 16u, 1024u}) push_and_check(capacity, 3, 10, 40, false);
}

TEST(ring_push_groups_fill_a_ring_past_many_laps) {
  // Capacities below, at and above the number of lanes that push together.
  for (const u32 capacity : {2u, 4u, 32u, 64u, 512u}) push_and_check(capacity, 2, kWarp + 9, 20, true);
}

TEST(ring_push_group_hands_out_tickets_in_lane_order) {
  Ring ring(128);
  Control control;
  std::vector<u64> ticket(kWarp);
  on_warp([&] {
    const WaitContext wait = context_of(control, kSecond);
    CHECK_EQ(push_group(ring.view, numbered(lane(), 0), false, wait), kNoTicket);
    ticket[lane()] = push_group(ring.view, numbered(lane(), 0), lane() % 4 == 1, wait);
  });
  for (u32 i = 0; i < kWarp; ++i) CHECK_EQ(ticket[i], i % 4 == 1 ? i / 4 : kNoTicket);
  CHECK_EQ(*ring.view.head, static_cast<u64>(kWarp / 4));
}

// A consumer that has taken everything by the time it is asked: pushes look at its tail once a lap, not once each.
TEST(ring_push_reads_the_tail_once_a_lap) {
  for (const u32 capacity : {64u, 256u})
    for (const u32 width : {1u, 3u, kWarp / 2, kWarp}) {
      Ring ring(capacity);
      Control control;
      const u32 turns = 40 * capacity / width, pushes = turns * width;
      u64 refused = 0;
      counted_word = ring.view.tail;
      counted_reads = 0;
      on_warp([&] {
        const WaitContext wait = context_of(control, 50 * kSecond);
        for (u32 t = 0; t < turns; ++t) {
          const Command c = numbered(lane(), t);
          u64 ticket = kNoTicket;
          if (width > 1)
            ticket = push_group(ring.view, c, lane() < width, wait);
          else if (lane() == 0)
            ticket = push(ring.view, c, wait);
          refused += lane() < width && ticket == kNoTicket;
          sync_warp();
          Command taken;
          if (lane() == 0) {
            while (ring.consumer.peek(&taken)) ring.consumer.advance();
            ring.consumer.publish_tail();
          }
          sync_warp();
        }
      });
      counted_word = nullptr;
      CHECK_EQ(refused, 0ull);
      CHECK_EQ(ring.consumer.next_ticket(), pushes);
      CHECK(counted_reads >= pushes / capacity / 2);  // the seam counts
      CHECK(counted_reads <= pushes / (capacity - width + 1) + 1);
    }
}

TEST(ring_push_refuses_a_value_beyond_its_field) {
  for (const bool group : {false, true}) {
    Ring ring(16);
    Control control;
    std::vector<u64> ticket(kWarp, 0);
    on_warp([&] {
      const WaitContext wait = context_of(control, kSecond);
      Command c = numbered(1, 1);
      if (lane() == 2) c.key = 1u << kKeyBits;
      if (group) ticket[lane()] = push_group(ring.view, c, lane() < 4, wait);
      if (!group && lane() == 2) ticket[lane()] = push(ring.view, c, wait);
    });
    CHECK_EQ(ticket[2], kNoTicket);
    if (group) CHECK_EQ(ticket[3], 2ull);  // the others are sent all the same
    CHECK_EQ(*ring.view.head, group ? 3ull : 0ull);
    CHECK_EQ(control.fault.kind, static_cast<u32>(FaultKind::kBadCommand));
    CHECK_EQ(control.fault.seen, static_cast<u64>(CommandError::kKey));
    CHECK_EQ(control.abort, 1ull);
  }
}

TEST(ring_push_into_a_ring_that_stays_full_expires) {
  for (const bool group : {false, true}) {
    Ring ring(4);
    Control control;
    std::vector<u64> ticket(kWarp, 0);
    on_warp([&] {
      const WaitContext wait = context_of(control, kSecond / 100);
      ticket[lane()] = group ? push_group(ring.view, numbered(9, lane()), lane() < 6, wait)
                             : push(ring.view, numbered(9, lane()), wait);
    });
    u32 written = 0;
    for (u32 i = 0; i < kWarp; ++i) written += ticket[i] != kNoTicket;
    CHECK_EQ(written, 4u);
    CHECK_EQ(control.fault.kind, static_cast<u32>(FaultKind::kRingFull));
    CHECK_EQ(control.fault.phase, static_cast<u32>(WaitPhase::kRing));
    CHECK_EQ(control.fault.peer, 9u);
    CHECK_EQ(control.fault.seen, 0ull);
    CHECK(control.fault.expected >= 1);
    CHECK_EQ(control.abort, 1ull);
  }
}

TEST(ring_push_done_is_waited_for) {
  Ring ring(8);
  Control control;
  bool completed = false;  // plain: publish_done releases it
  std::thread proxy([&] {
    Command c;
    while (!ring.consumer.peek(&c)) std::this_thread::yield();
    ring.consumer.advance();
    ring.consumer.publish_tail();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    completed = true;
    ring.consumer.publish_done(1);
  });
  bool ok = false, early = true, expired = true;
  on_warp([&] {
    if (lane() != 0) return;
    const WaitSite site{WaitPhase::kTeardown, 1, {}, 0};
    const u64 ticket = push(ring.view, numbered(1, 1), context_of(control, 30 * kSecond));
    ok = wait_done(ring.view, ticket, context_of(control, 30 * kSecond), site);
    early = !completed;
    expired = wait_done(ring.view, ticket + 1, context_of(control, 1000), site);
  });
  proxy.join();
  CHECK(ok);
  CHECK(!early);
  CHECK(!expired);
  CHECK_EQ(control.fault.expected, 2ull);
  CHECK_EQ(control.fault.seen, 1ull);
}

}  // namespace uccl::simt
