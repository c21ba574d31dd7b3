// The ring, every interleaving: two producers and one consumer over two to four slots, several laps; the two words of a
// slot stored in either order with anything between them, the consumer's two loads likewise, racy cached tails.
//
// The product's functions do the work, cut where another thread may come between: a producer's look at the tail is given
// the value that the tail had when it looked, and a consumer's peek sees each word as it was when it was loaded.
#include <array>

#include "exhaustive/explore.h"
#include "kernels/device/ring_push.h"
#include "ring/consumer.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

constexpr u32 kMostSlots = 4, kMostTickets = 16;

struct alignas(64) RingWords {
  RingHeader header;
  u128 slots[kMostSlots];
};

struct RingPlan {
  u32 capacity;
  u64 start;  // tickets that have gone through before
  std::array<u8, 2> batches;  // how many tickets each producer reserves at once
  std::array<u8, 2> pushes;  // how many batches
};

class RingWorld {
 public:
  enum Kind : u8 { kReserve, kLook, kRoom, kStoreLo, kStoreHi, kLoadLo, kPeek, kPublish };
  struct Action {
    Kind kind;
    u8 producer;
  };
  struct State {
    RingWords ring;
    struct Producer {
      u64 ticket, end;  // the one being written, and the end of the batch
      u64 looked;  // the tail when it looked
      u8 pushes_left, step;  // step: what comes next
      u8 lo_stored, hi_stored;
      u8 unused[4];
    };
    std::array<Producer, 2> producers;
    u64 next, published, lo;  // the consumer: next ticket, tail, the low word as loaded
    u64 lo_loaded;
    u64 committed;  // bit per ticket - start: both words are stored
    std::array<u64, kMostTickets> writer;  // by ticket - start: 1 + producer
  };
  using Snapshot = State;

  explicit RingWorld(const RingPlan& plan) : plan_(plan) {
    std::memset(&s_, 0, sizeof(s_));
    RingHeader& h = s_.ring.header;
    h.head = h.tail = h.done = h.cached_tail = s_.next = s_.published = plan.start;
    for (u64 t = plan.start; t < plan.start + plan.capacity; ++t) {  // what the lap before left there
      const u64 old = lap_parity(t, plan.capacity) ^ kParityBit;
      s_.ring.slots[t % plan.capacity] = {old, old};
    }
    for (u32 p = 0; p < 2; ++p) s_.producers[p].pushes_left = plan.pushes[p];
  }

  void actions(std::vector<Action>& out) const {
    for (u8 p = 0; p < 2; ++p) {
      const State::Producer& w = s_.producers[p];
      if (w.ticket == w.end) {
        if (w.pushes_left != 0) out.push_back({kReserve, p});
      } else if (w.step == 0) {
        out.push_back({kLook, p});
      } else if (w.step == 1) {
        out.push_back({kRoom, p});
      } else {
        if (!w.lo_stored) out.push_back({kStoreLo, p});
        if (!w.hi_stored) out.push_back({kStoreHi, p});
      }
    }
    if (s_.next != all()) out.push_back(s_.lo_loaded ? Action{kPeek, 0} : Action{kLoadLo, 0});
    if (s_.published != s_.next) out.push_back({kPublish, 0});
  }

  void act(const Action& a) {
    State::Producer& w = s_.producers[a.producer];
    switch (a.kind) {
      case kReserve:
        w.ticket = std::atomic_ref<u64>(s_.ring.header.head).fetch_add(plan_.batches[a.producer]);
        w.end = w.ticket + plan_.batches[a.producer];
        --w.pushes_left;
        for (u64 t = w.ticket; t < w.end; ++t) s_.writer[t - plan_.start] = 1u + a.producer;
        return;
      case kLook:
        w.looked = s_.ring.header.tail;
        w.step = 1;
        return;
      case kRoom: {
        RingView view = ring_view(&s_.ring, plan_.capacity);
        view.tail = &w.looked;
        w.step = ring_room(view, w.ticket) ? 2 : 0;
        w.looked = 0;  // of no further use: states that differ in it are one
        return;
      }
      case kStoreLo:
      case kStoreHi: store(a); return;
      case kLoadLo:
        s_.lo = s_.ring.slots[s_.next % plan_.capacity].lo;
        s_.lo_loaded = 1;
        return;
      case kPeek: peek(); return;
      case kPublish:
        s_.published = s_.next;
        std::atomic_ref<u64>(s_.ring.header.tail).store(s_.next);
        return;
    }
  }

  void check() const {
    // No ticket is given twice, and nothing is taken that was not wholly committed.
    CHECK(s_.next <= s_.ring.header.head);
    for (u64 t = plan_.start; t < s_.next; ++t) CHECK(s_.committed >> (t - plan_.start) & 1);
    CHECK(s_.ring.header.tail <= s_.next);
  }
  void check_end() const {
    CHECK_EQ(s_.next, all());
    CHECK_EQ(s_.ring.header.tail, all());
  }
  void state(Bytes& out) const { put_bytes(out, &s_, sizeof(s_)); }
  Snapshot save() const { return s_; }
  void load(const Snapshot& s) { s_ = s; }
  std::string describe(const Action& a) const {
    static const char* names[] = {"reserve",  "look at the tail", "room?",   "store lo",
                                  "store hi", "load lo",          "load hi", "publish the tail"};
    return std::string(names[a.kind]) + (a.kind < kLoadLo ? " by producer " + std::to_string(a.producer) : "");
  }

 private:
  u64 all() const {
    u64 end = plan_.start;
    for (u32 p = 0; p < 2; ++p) end += u64{plan_.batches[p]} * plan_.pushes[p];
    return end;
  }

  // Fields of both words differ from ticket to ticket and from producer to producer, so a mixture is seen.
  Command command(u64 ticket) const {
    const u64 n = ticket - plan_.start;
    Command c;
    c.op = Op::kWrite;
    c.peer = static_cast<u32>(s_.writer[n]);
    c.key = static_cast<u32>(n << kKeyLowBits | n);
    c.local_offset = (n + 1) * kWireUnitBytes;
    c.remote_offset = (n + 3) * kWireUnitBytes;
    return c;
  }

  void store(const Action& a) {
    State::Producer& w = s_.producers[a.producer];
    // No slot is overwritten before it was read: the lap before has been taken.
    CHECK(w.ticket < plan_.start + plan_.capacity || s_.next > w.ticket - plan_.capacity);
    RingWords scratch = s_.ring;
    ring_store(ring_view(&scratch, plan_.capacity), w.ticket, command(w.ticket));
    u128& slot = s_.ring.slots[w.ticket % plan_.capacity];
    const u128& whole = scratch.slots[w.ticket % plan_.capacity];
    (a.kind == kStoreLo ? slot.lo : slot.hi) = a.kind == kStoreLo ? whole.lo : whole.hi;
    (a.kind == kStoreLo ? w.lo_stored : w.hi_stored) = 1;
    if (!w.lo_stored || !w.hi_stored) return;
    s_.committed |= 1ull << (w.ticket - plan_.start);
    w.lo_stored = w.hi_stored = w.step = 0;
    if (++w.ticket == w.end) w.ticket = w.end = 0;  // an idle producer is an idle producer
  }

  void peek() {
    RingWords scratch = s_.ring;
    scratch.header.tail = s_.next;  // where a new consumer goes on
    scratch.slots[s_.next % plan_.capacity].lo = s_.lo;
    RingConsumer consumer(&scratch, plan_.capacity);
    Command c;
    s_.lo = s_.lo_loaded = 0;
    if (!consumer.peek(&c)) return;
    const Command sent = command(s_.next);
    CHECK(s_.committed >> (s_.next - plan_.start) & 1);
    CHECK(c.op == sent.op && c.peer == sent.peer && c.key == sent.key && c.bytes == sent.bytes);
    CHECK(c.local_offset == sent.local_offset && c.remote_offset == sent.remote_offset);
    CHECK_EQ(consumer.advance(), s_.next);
    s_.next = consumer.next_ticket();
  }

  RingPlan plan_;
  State s_;
};

}  // namespace

TEST(exhaustive_ring_two_producers_over_two_slots) {
  for (const u64 start : {0ull, 3ull})
    explore("ring, 2 slots, one at a time, from " + std::to_string(start), RingWorld({2, start, {1, 1}, {2, 2}}));
  explore("ring, 2 slots, batches of 3 and 1", RingWorld({2, 1, {3, 1}, {1, 2}}));
  explore("ring, 2 slots, 6 tickets", RingWorld({2, 0, {1, 1}, {3, 3}}));
}

TEST(exhaustive_ring_two_producers_over_four_slots) {
  explore("ring, 4 slots, batches of 3 and 2", RingWorld({4, 6, {3, 2}, {1, 1}}));
  explore("ring, 4 slots, batches of 3 and 2, twice", RingWorld({4, 2, {3, 2}, {2, 1}}));
  if (depth() < 2) return;
  explore("ring, 2 slots, 8 tickets", RingWorld({2, 1, {1, 1}, {4, 4}}));
  explore("ring, 4 slots, 10 tickets in batches", RingWorld({4, 2, {3, 2}, {2, 2}}));
}

TEST(exhaustive_ring_a_torn_slot_is_told_by_either_word) {
  alignas(64) RingWords words;
  std::memset(&words, 0, sizeof(words));
  RingConsumer consumer(&words, 2);
  Command c;
  const u128 w = pack(Command{Op::kWrite, 1, 2, 16, 32, 48}, lap_parity(0, 2));
  words.slots[0].lo = w.lo;
  CHECK(!consumer.peek(&c));
  words.slots[0] = {0, w.hi};
  CHECK(!consumer.peek(&c));
  words.slots[0] = w;
  CHECK(consumer.peek(&c));
}
