// Credits, every interleaving: the real gate decides what is sent, the real receiver widens ten bits; the network
// delivers in any order, delivers again, and may lose a credit that a later one replaces. Oracle: the largest delivered.
#include <algorithm>

#include "engine/credit_gate.h"
#include "exhaustive/private_state.h"
#include "exhaustive/rank.h"
#include "kernels/layout/throughput.h"

using namespace uccl;
using namespace uccl::testing;

namespace {

struct CreditPlan {
  u64 base;  // the writer's view of the head when it begins
  std::vector<u32> steps;  // by how much each credit goes further than the one before
  u32 duplicates, losses;
};

class CreditWorld {
 public:
  enum Kind : u8 { kSend, kDeliver, kAgain, kLose, kComplete };
  struct Action {
    Kind kind;
    u8 credit;
  };
  using Snapshot = Bytes;

  explicit CreditWorld(const CreditPlan& plan)
      : plan_(plan), rank_(2, 1), gate_(2, 1), sequences_(rank_.base(), rank_.layout, counters_) {
    u64 head = plan.base;
    for (const u32 step : plan.steps) heads_.push_back(head += step);
    rank_.set_word(word_offset(), plan.base);
    // Nothing has been sent in this life: the gate learns of the base as of a credit that was sent and is complete.
    gate_.opened(0, static_cast<u32>(plan.base & low_bits(kSequenceBits)));
    gate_.completed(0);
    net_.phase.fill(kWaiting);
  }

  void actions(std::vector<Action>& out) const {
    if (net_.next < heads_.size() && gate_.may_send(0, key_position(key(net_.next))) && written(net_.next))
      out.push_back({kSend, net_.next});
    for (u8 i = 0; i < net_.next; ++i) {
      if (net_.phase[i] == kFlying) {
        out.push_back({kDeliver, i});
        // The newest credit of all is not lost: nothing would replace it.
        if (net_.losses < plan_.losses && i + 1u != heads_.size()) out.push_back({kLose, i});
      }
      if (net_.phase[i] == kThere) out.push_back({kComplete, i});
      if (net_.phase[i] == kThere && net_.again < plan_.duplicates) out.push_back({kAgain, i});
    }
  }

  void act(const Action& a) {
    switch (a.kind) {
      case kSend:
        gate_.opened(0, key_position(key(a.credit)));
        net_.phase[a.credit] = kFlying;
        ++net_.next;
        return;
      case kDeliver:
      case kAgain: {
        const Outcome expected = heads_[a.credit] > known() ? Outcome::kApplied : Outcome::kOvertaken;
        CHECK(sequences_.credit(1, key(a.credit)).outcome == expected);
        net_.largest = std::max(net_.largest, static_cast<u8>(a.credit + 1));
        if (a.kind == kDeliver) net_.phase[a.credit] = kThere;
        net_.again = static_cast<u8>(net_.again + (a.kind == kAgain));
        return;
      }
      case kLose:
        ++net_.losses;
        net_.phase[a.credit] = kThere;  // complete for its sender all the same
        return;
      case kComplete:
        gate_.completed(0);
        net_.phase[a.credit] = kDone;
        return;
    }
  }

  void check() const {
    CHECK_EQ(known(), net_.largest == 0 ? plan_.base : heads_[net_.largest - 1u]);  // so it never goes back either
  }
  void check_end() const {
    // After a loss the reader has nothing more to finish until the writer hears of what it did: the next credit is not
    // lost for ever, since the transport is reliable. Without one, the gate let everything out in the end.
    if (net_.losses != 0 && net_.next != heads_.size()) return;
    CHECK_EQ(std::size_t{net_.next}, heads_.size());
    CHECK_EQ(known(), heads_.back());
  }

  void state(Bytes& out) const {
    put_gate(out, gate_);
    put(out, known());
    put(out, net_);
  }
  Snapshot save() const {
    Bytes out;
    state(out);
    return out;
  }
  void load(const Snapshot& in) {
    const char* from = in.data();
    for (auto& s : private_of<GateStreams>(gate_)) {
      std::memcpy(&s.open, from, 4);
      std::memcpy(&s.settled, from + 4, 2);
      std::memcpy(&s.newest, from + 6, 2);
      from += 8;
    }
    u64 word;
    std::memcpy(&word, from, 8);
    rank_.set_word(word_offset(), word);
    std::memcpy(&net_, from + 8, sizeof(net_));
  }
  std::string describe(const Action& a) const {
    static const char* names[] = {"send", "deliver", "deliver again", "lose", "complete"};
    return std::string(names[a.kind]) + " credit base+" + std::to_string(heads_[a.credit] - plan_.base);
  }

 private:
  static constexpr u32 kMost = 8;
  enum Phase : u8 { kWaiting, kFlying, kThere, kDone };
  struct Net {
    std::array<u8, kMost> phase;
    u8 next = 0, largest = 0, again = 0, losses = 0;  // largest: 1 + the newest that was delivered
  };
  // A reader finishes only what the writer wrote, which is a ring ahead of the head that the writer knows, at most. Where
  // no credit is lost the gate alone is enough, and this is left out; the field is too small for a loss without it.
  bool written(u8 credit) const { return plan_.losses == 0 || heads_[credit] <= known() + StreamGeometry::kMaxSlots; }
  u64 word_offset() const { return rank_.layout.credit(Direction::kDispatch, 1, 0); }
  u64 known() const { return rank_.word(word_offset()); }
  u32 key(u8 credit) const { return stream_key(Direction::kDispatch, 0, heads_[credit]); }

  CreditPlan plan_;
  ControlSegment rank_;
  mutable CreditGate gate_;  // read through pointers to its private members
  WorkerCounters counters_{};
  Sequences sequences_;
  std::vector<u64> heads_;
  Net net_;
};

// Every way to step by these distances, `length` times; 256 is the most that a reader can be behind (kMaxSlots).
std::vector<std::vector<u32>> all_steps(std::size_t length) {
  std::vector<std::vector<u32>> all = {{}};
  while (all[0].size() < length) {
    std::vector<std::vector<u32>> longer;
    for (const auto& steps : all)
      for (const u32 step : {1u, 255u, 256u}) {
        longer.push_back(steps);
        longer.back().push_back(step);
      }
    all = std::move(longer);
  }
  return all;
}

void explore_all(std::size_t length, u32 duplicates, u32 losses) {
  for (const u64 base : {0ull, 1000ull, (1ull << 32) - 700}) {
    Explored sum;
    for (const auto& steps : all_steps(length)) {
      CreditWorld world({base, steps, duplicates, losses});
      const Explored e = Explorer<CreditWorld>(world).run();
      sum.states += e.states;
      sum.interleavings += e.interleavings;
    }
    std::printf(
        "explored credits, %zu of distance 1, 255 or 256, %u again, %u lost, base %llu: %llu states, %.6Lg "
        "interleavings\n",
        length, duplicates, losses, base, sum.states, sum.interleavings);
  }
}

}  // namespace

TEST(exhaustive_credit_gate_any_order) { explore_all(depth() > 1 ? 7 : 5, 0, 0); }

TEST(exhaustive_credit_gate_again_and_lost) { explore_all(depth() > 1 ? 6 : 4, 1, 1); }

// Without the gate a credit that was held back would be taken for a new one: the field is too small for it.
TEST(exhaustive_credit_gate_is_needed) {
  ControlSegment rank(2, 1);
  WorkerCounters counters{};
  Sequences sequences(rank.base(), rank.layout, counters);
  const auto credit = [&](u64 head) { return sequences.credit(1, stream_key(Direction::kDispatch, 0, head)).outcome; };
  for (const u64 head : {256ull, 512ull, 768ull}) CHECK(credit(head) == Outcome::kApplied);
  CHECK(credit(1) == Outcome::kApplied);  // 1 reads as 1025
  CreditGate gate(2, 1);
  gate.opened(0, 1);
  gate.opened(0, 256);
  CHECK(!gate.may_send(0, 512));
}
